"""The hosts: where each keeps its hooks, and the handlers it needs."""
