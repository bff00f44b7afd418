"""The formats in which hosts send events and expect answers, one module for each host."""
