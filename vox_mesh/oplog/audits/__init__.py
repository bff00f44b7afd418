"""Audits of the op log: what entries, messages and nodes have done that was not allowed."""
