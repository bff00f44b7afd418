"""Grants: issue, delegate, revoke and check them."""
