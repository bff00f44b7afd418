"""What all commands share: options, output, exit codes, sessions."""

from __future__ import annotations

from typing import Final

COMPLETE: Final = "_VOX_MESH_COMPLETE"
"""The variable that a shell sets to have words completed; its value names the shell."""
