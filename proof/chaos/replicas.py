"""How often replicas start over, as noted by nodes; and how often the server compacted its log."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

from proof.history import Recorder
from vox_mesh.store.replica.copy import Copy

_SNAPSHOTS: Final = "dbs/*/snapshots/*"
_LOOK_S: Final = 0.1


def watch_replicas(recorder: Recorder) -> None:
    """Have every replica of this process note when it drops its copy, and why that may be."""
    start_over: Any = Copy.start_over

    async def start_over_noted(this: Copy, log_id: str) -> None:
        about = {
            "held": this.next_frame,
            "was_damaged": this.is_damaged,
            "is_same_log": this.log_id == log_id,
        }
        recorder.note("replica.started_over", **about)
        await start_over(this, log_id)

    setattr(Copy, "start_over", start_over_noted)  # noqa: B010 - a method of a class, for all of its objects


class Compactions:
    """Count the compactions of a server's log, by the snapshots that they leave for a while."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._seen: set[str] = set()

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            self._seen |= {path.name for path in self._data.glob(_SNAPSHOTS)}
            await asyncio.sleep(_LOOK_S)

    @property
    def count(self) -> int:
        """The number of compactions."""
        return len(self._seen)
