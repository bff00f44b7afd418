"""Coordination: nodes and their log. It knows nothing of HTTP or the terminal."""
