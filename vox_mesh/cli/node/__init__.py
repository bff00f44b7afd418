"""Commands that run a node or show the nodes of the mesh."""
