"""Watch a store for changes."""
