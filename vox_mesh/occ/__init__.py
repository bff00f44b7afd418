"""Optimistic concurrency control: versions, conflicts and their resolution."""
