"""Retention: what is pruned, and what is not."""
