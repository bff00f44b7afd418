"""Retention: prune what is past its policy, in small batches, by one leader at a time."""
