"""Instruments that try to break the mesh, and checks that decide from a history whether they succeeded."""
