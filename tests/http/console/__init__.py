"""The console of a node over real sockets."""
