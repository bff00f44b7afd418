"""Tests of what joins hosts of agents to the mesh."""
