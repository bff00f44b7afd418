"""Views of crons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from vox_mesh.jobs.crons import CronJob


@dataclass(frozen=True)
class CronView:
    """A cron by column; its manifest and options are the values themselves."""

    name: str
    expression: str
    timezone: str
    manifest: dict[str, Any]
    options: dict[str, Any]
    next_ms: int
    last_ms: int | None
    last_job: str | None
    added_ms: int

    @classmethod
    def of(cls, cron: CronJob) -> CronView:
        """Return the view of a cron."""
        values = {"manifest": orjson.loads(cron.manifest), "options": orjson.loads(cron.options)}
        return cls(**cron._asdict() | values)


@dataclass(frozen=True)
class RemovedCronView:
    """A cron that is no more."""

    name: str
    removed: bool = True
