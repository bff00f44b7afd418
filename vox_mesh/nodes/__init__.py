"""Nodes: identity, membership and the clock of the mesh."""
