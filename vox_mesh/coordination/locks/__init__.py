"""Locks: leases on keys, with a token that fences whoever has lost one."""
