"""Locks: records, tokens and patterns of keys."""
