"""Budgets: limits on spending, and recorded costs."""
