"""Chaos: real processes on one machine, under a nemesis that knows no mercy."""
