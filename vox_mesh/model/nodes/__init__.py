"""Nodes: liveness, steps of the clock, what a node remembers of the store."""
