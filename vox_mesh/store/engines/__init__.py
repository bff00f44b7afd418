"""Engines: how requests reach a database in memory, in a file or on a server."""
