"""Budgets: what may be spent in a bar, and what was."""
