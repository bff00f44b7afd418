"""The node's HTTP service, and how it calls those of other nodes."""
