"""The HTTP API: what the command line can ask or do, as operations on resources."""
