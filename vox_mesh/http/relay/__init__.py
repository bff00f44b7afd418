"""The relay: messages delivered from node to node over HTTP."""
