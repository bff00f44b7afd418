"""The HTTP API: the operations of the command line, on resources."""
