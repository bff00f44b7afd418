"""Deprecated: its modules moved to folders of their own, such as `vox_mesh.locks`."""
