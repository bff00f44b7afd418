"""Chaos: real processes on one machine, and a nemesis that injects faults."""
