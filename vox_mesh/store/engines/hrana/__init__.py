"""The Hrana protocol over HTTP and WebSocket."""
