"""The script that hosts run. It is copied to where hooks are installed, and imports nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SCRIPT: Final = Path(__file__).with_name("vox_mesh_hook.py")
"""The script."""
