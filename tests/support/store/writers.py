"""A program that writes: a real process that says on stdout, in JSON lines, what it was reported.

`python -m tests.support.store.writers JOB`, with the settings in the environment. Closing its stdin asks it
to finish and end.
"""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import Final

from tests.support.running.jobs import Job, do_job, report, stop_asked
from vox_mesh import MeshError, Role, Script, Statement, Store, guard, load_settings, open_store
from vox_mesh.errors import OutcomeUnknown

COLUMNS: Final = "seq INTEGER PRIMARY KEY, writer, caller, n, part CHECK (part < 9)"
"""Nothing here is unique but `seq`: a script that is applied twice shows."""

FAILURES: Final = {"constraint": "ConstraintFailed", "guard": "Refused", "sql": "BadStatement"}
"""The ways in which a script is made to fail, and what its caller must be reported."""

_FAILING_SHARES: Final = (0.005, 0.02, 0.1, 0.4)
_PATIENCE_S: Final = 90.0


def part(job: Job, caller: int, n: int, number: int) -> Statement:
    """One of the rows that a script writes."""
    return Statement(
        f"INSERT INTO {job.table} (writer, caller, n, part) VALUES (?, ?, ?, ?)",
        (job.writer, caller, n, number),
    )


def pair(job: Job, caller: int, n: int, kind: str = "good") -> Script:
    """A script of two rows; of a failing one neither may stay."""
    first, second = part(job, caller, n, 1), part(job, caller, n, 2)
    match kind:
        case "good":
            return Script(first, second)
        case "constraint":
            return Script(first, part(job, caller, n, 9))
        case "guard":
            written = f"NOT EXISTS (SELECT 1 FROM {job.table} WHERE writer = ? AND caller = ? AND n = ?)"
            return Script(first, second, guard(written, (job.writer, caller, n), refusal="was_written"))
        case _:
            return Script(first, Statement(f"INSERT INTO {job.table}_missing VALUES (1)"))


async def outcome_of(store: Store, script: Script, timeout: float | None = None) -> str:
    """What the caller of a script was reported: `applied`, or the name of the error."""
    try:
        await store.write(script, timeout=timeout)
    except MeshError as error:
        return type(error).__name__
    return "applied"


async def mixed(job: Job) -> None:
    """A number of scripts, some of which fail, shared among the callers."""
    random = Random(f"{job.seed} {job.writer}")
    failing = random.choice(_FAILING_SHARES)
    kinds = [
        random.choice(list(FAILURES)) if random.random() < failing else "good" for _ in range(job.scripts)
    ]
    left = iter(enumerate(kinds))

    async def call(store: Store) -> None:
        for n, kind in left:
            report(n=n, kind=kind, outcome=await outcome_of(store, pair(job, 0, n, kind)))

    async with await open_store(load_settings()) as store:
        await asyncio.gather(*(call(store) for _ in range(job.callers)))


async def stream(job: Job) -> None:
    """Pairs of rows from every caller, until asked to stop."""
    stopping = asyncio.create_task(stop_asked())

    async def call(store: Store, caller: int) -> None:
        timeout = job.timeouts[caller % len(job.timeouts)]
        n = 0
        while not stopping.done():
            script = pair(job, caller, n)
            answer = await outcome_of(store, script, timeout)
            if answer == OutcomeUnknown.__name__ and job.resends and n % 2 == 0:
                report(caller=caller, n=n, outcome=await outcome_of(store, script, _PATIENCE_S), resent=True)
            else:
                report(caller=caller, n=n, outcome=answer)
            n += 1

    async with await open_store(load_settings()) as store:
        await asyncio.gather(*(call(store, caller) for caller in range(job.callers)))
        await stopping


async def load(job: Job) -> None:
    """As many pairs of rows as go, for some seconds; only the sum of it is reported."""
    async with await open_store(load_settings()) as store:
        report(ready=True)
        await stop_asked()
        end = time.monotonic() + job.seconds

        async def call(caller: int) -> None:
            n, longest, answer = 0, 0.0, "applied"
            while answer == "applied" and (started := time.monotonic()) < end:
                answer = await outcome_of(store, pair(job, caller, n))
                longest = max(longest, time.monotonic() - started)
                n += answer == "applied"
            report(caller=caller, applied=n, longest_s=longest, outcome=answer)

        await asyncio.gather(*(call(caller) for caller in range(job.callers)))


async def spool(job: Job) -> None:
    """Appendable rows, one after another; then stay alive."""
    async with await open_store(load_settings()) as store:
        for n in range(job.scripts):
            outcome = await store.write(Script(part(job, 0, n, 1), appendable=True))
            report(n=n, spooled=outcome.spooled)
        await stop_asked()


async def drain(job: Job) -> None:
    """Replay what the slot's spool holds."""
    async with await open_store(load_settings()) as store, asyncio.timeout(_PATIENCE_S):
        report(ready=True)
        await store.drained()
        report(drained=True)


async def start(job: Job) -> None:
    """Open the store when asked to, as a command, which needs the database at once; then write."""
    report(ready=True)
    await stop_asked()
    async with await open_store(load_settings(), Role.COMMAND) as store:
        report(outcome=await outcome_of(store, Script(Statement("SELECT 1"))))


if __name__ == "__main__":
    do_job(mixed, stream, load, spool, drain, start)
