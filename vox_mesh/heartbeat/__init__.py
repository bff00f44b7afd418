"""Heartbeats: a node's own, and what they say about the others."""
