"""The node's HTTP service, and the client of other nodes' services."""
