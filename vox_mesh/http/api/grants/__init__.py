"""Grants and approvals over HTTP."""
