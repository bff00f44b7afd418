"""Exploits: each is run against real processes, files and servers, and must fail."""
