"""Commands for the rhythm: beats, budgets, policies, scores and reports."""
