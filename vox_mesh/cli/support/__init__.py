"""Code that all commands share: options, output, exit codes, logs, sessions."""

from __future__ import annotations

TYPE_CHECKING = False  # that of `typing`, which is slow to import
if TYPE_CHECKING:
    from typing import Final

COMPLETE: Final = "_VOX_MESH_COMPLETE"
"""Set by a shell that asks for completions; the value names the shell."""
