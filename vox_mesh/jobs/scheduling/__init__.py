"""Jobs that definitions schedule: crons at their times, rules for ops, and workflows."""
