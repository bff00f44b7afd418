"""The live view of the mesh in a terminal. What draws it is loaded only when it is drawn."""
