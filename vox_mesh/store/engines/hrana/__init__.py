"""Speak the Hrana protocol over HTTP and WebSocket."""
