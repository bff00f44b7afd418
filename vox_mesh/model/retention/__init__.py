"""Retention: how long rows are kept, and which of them may be pruned."""
