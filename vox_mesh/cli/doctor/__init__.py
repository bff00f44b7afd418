"""`vox-mesh doctor`: checks of the machine, the database and the mesh."""
