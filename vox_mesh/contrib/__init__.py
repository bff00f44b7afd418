"""Provide optional engines: `libsql-client`, and the replica of the native libSQL library."""
