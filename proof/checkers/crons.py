"""Crons: each due time fires once, and missed times are caught up with one firing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from proof.final_state import Row, final_rows, grouped
from proof.history import History
from proof.verdicts import Check
from proof.workloads.jobs import EVERY_MS

_LATE_MS: Final = 20_000
"""A cron is late after this time, if nothing hinders it."""


def crons_once(history: History) -> Iterator[str | int]:
    """Follow each cron from one firing to the next."""
    jobs = {job["job_id"] for job in final_rows(history, "jobs")}
    for name, moves in grouped(final_rows(history, "proof_cron_moves"), "name").items():
        fired: set[int] = set()
        for before, now in pairwise(moves):
            if now["deed"] == "update" and now["last_ms"] is not None:  # otherwise only its time was set
                yield 1
                for fault in _faults(before, now, jobs, fired):
                    yield f"cron {name}: {fault}"
                fired.add(now["last_ms"])
        yield from _lateness(history, moves[-1])


def _faults(before: Row, now: Row, jobs: set[str], fired: set[int]) -> Iterator[str]:
    due_ms, time_ms, next_ms = before["next_ms"], now["last_ms"], now["next_ms"]
    if time_ms in fired:
        yield f"{time_ms} was fired twice"
    if not due_ms <= time_ms <= now["at_ms"]:
        yield f"{time_ms} was fired at {now['at_ms']}, when {due_ms} was due"
    if next_ms != time_ms + EVERY_MS:
        yield f"after {time_ms} came {next_ms}, not {time_ms + EVERY_MS}"
    if now["last_job"] not in jobs:
        yield f"the job of {time_ms} is not there"


def _lateness(history: History, last: Row) -> Iterator[str]:
    """Check that every time due at the removal of the cron, or at the end, has fired."""
    if last["deed"] == "delete":
        end_ms = last["at_ms"]
    else:
        end_ms = max((event.data["now_ms"] for event in history.notes("final.clock")), default=0)
    if last["next_ms"] < end_ms - _LATE_MS:
        yield f"cron {last['name']}: {last['next_ms']} was not fired until {end_ms}"


CRON_CHECKS: Final = (
    Check("crons-once", "a cron fires once for each of its times, or once for those it missed", crons_once),
)
