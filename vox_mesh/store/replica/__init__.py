"""The embedded replica: a local copy of the primary, kept milliseconds behind by its write-ahead log."""
