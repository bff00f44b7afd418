"""Locks with fencing tokens, leases and a queue of waiters."""
