"""The live view of the mesh in a terminal. The drawing code is imported only when it is drawn."""
