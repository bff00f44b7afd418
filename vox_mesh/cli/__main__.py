"""`python -m vox_mesh.cli` is `vox-mesh`."""

from __future__ import annotations

from vox_mesh.cli import main

main()
