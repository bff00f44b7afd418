"""Optimistic concurrency control: merging of values."""
