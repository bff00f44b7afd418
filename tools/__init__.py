"""Tools for development: the real server, installed and run on loopback, generated documents, the demo."""
