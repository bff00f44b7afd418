"""Principals: agents that prove who they are, and what they are refused."""
