"""Hooks: what hosts of agents report, and what they are answered."""
