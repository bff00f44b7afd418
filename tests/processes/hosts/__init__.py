"""Tests of hosts of agents with real processes."""
