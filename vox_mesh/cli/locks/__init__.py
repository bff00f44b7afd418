"""Commands for locks, and the guard of paths in a Git repository."""
