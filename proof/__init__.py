"""Instruments that try to break the mesh, and judges that tell from a history whether they did."""
