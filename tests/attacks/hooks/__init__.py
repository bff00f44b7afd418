"""Attacks on the hooks of hosts of agents."""
