"""Hrana: the wire protocol of libSQL servers, over WebSocket and over HTTP."""
