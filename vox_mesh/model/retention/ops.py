"""The ops of retention."""

from __future__ import annotations

from typing import Final

SET_RETENTION: Final = "SetRetention"
"""The op that sets a policy."""

PRUNE: Final = "PruneJobs"
"""The op that records which jobs were pruned."""
