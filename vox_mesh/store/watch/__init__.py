"""Watching a store for changes."""
