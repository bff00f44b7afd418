"""What players do with the mesh while it is tried: one module for each."""
