"""Grants: who may do what, by whose word; pure."""
