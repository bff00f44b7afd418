"""A program that keeps a replica: a real process that says on stdout, in JSON lines, what it saw of it.

`python -m tests.support.replica.replicas JOB`, with the settings in the environment. Closing its stdin asks
it to finish and end.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from itertools import count
from typing import Final

from tests.support.running.jobs import Job, do_job, report, stop_asked
from vox_mesh import Answer, Script, Settings, Statement, Store, load_settings, open_store
from vox_mesh.errors import DatabaseUnavailable
from vox_mesh.store.replica.mark import read_record
from vox_mesh.store.replica.paths import replica_path

COUNTERS: Final = "name TEXT PRIMARY KEY, n INTEGER NOT NULL"
SHARED: Final = "shared"
"""The name of the counter that all processes raise."""

AMOUNTS: Final = "id INTEGER PRIMARY KEY, amount INTEGER NOT NULL"
ACCOUNTS: Final = 16
_PATIENCE_S: Final = 90.0
_TICK_S: Final = 0.001
_SHORT_ONLY: Final = 0.6
_EVERY_LONG: Final = 50
_PASSING_BY: Final = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 30000)"


def _report_position(settings: Settings) -> None:
    assert settings.node_id is not None
    record = read_record(replica_path(settings.db_path, settings.node_id))
    if record is not None:
        report(log_id=record.log_id, next_frame=record.next_frame)


async def keep(job: Job) -> None:
    """Keep a replica, read from it, and say after every change how far it has come."""
    settings = load_settings()
    stopping = asyncio.create_task(stop_asked())
    async with await open_store(settings) as store:
        report(started=True)
        while not stopping.done():
            seen = store.change_count
            with suppress(DatabaseUnavailable):
                await store.read("SELECT name, sql FROM sqlite_schema ORDER BY name")
            _report_position(settings)
            change = asyncio.create_task(store.changed(seen))
            await asyncio.wait({change, stopping}, return_when=asyncio.FIRST_COMPLETED)
            change.cancel()


class CounterWriter:
    """Writes its own counter and the shared one, reads all of them, and reports both with their times."""

    def __init__(self, store: Store, job: Job) -> None:
        self._store = store
        self._table = job.table
        self._name = job.writer
        self._values = f"SELECT name, n FROM {job.table} ORDER BY name"

    def _raise(self, name: str) -> Script:
        return Script(
            Statement(
                f"INSERT INTO {self._table} VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET n = n + 1", (name,)
            ),
            answer=Answer(f"SELECT n FROM {self._table} WHERE name = ?", (name,), columns=("n",)),
        )

    async def write(self) -> None:
        """Raise both counters, and read at once after each."""
        for name in (self._name, SHARED):
            sent_at = time.monotonic()
            report(event="sent", counter=name, at=sent_at)
            outcome = await self._store.write(self._raise(name), timeout=_PATIENCE_S)
            report(event="written", counter=name, n=outcome.rows.value, sent_at=sent_at, at=time.monotonic())
            await self.read()

    async def read(self) -> None:
        """Read all counters in one query."""
        asked_at = time.monotonic()
        try:
            rows = await self._store.read(self._values)
        except DatabaseUnavailable as fault:
            report(event="away", outcome=type(fault).__name__, at=time.monotonic())
            return
        values = {row["name"]: row["n"] for row in rows}
        report(event="read", values=values, age_s=rows.age_s, asked_at=asked_at, at=time.monotonic())


async def history(job: Job) -> None:
    """Write and read without a pause, and read with every change, until asked to stop."""
    stopping = asyncio.create_task(stop_asked())
    async with await open_store(load_settings()) as store:
        historian = CounterWriter(store, job)

        async def write() -> None:
            while not stopping.done():
                await historian.write()

        async def read() -> None:
            while True:
                seen = store.change_count
                await historian.read()
                await store.changed(seen)

        reading = asyncio.create_task(read())
        await write()
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading


async def move(job: Job) -> None:
    """Move amounts from one table to the other, from many callers, until asked to stop."""
    stopping = asyncio.create_task(stop_asked())
    moved = count()
    async with await open_store(load_settings()) as store:
        report(ready=True)

        async def call() -> None:
            while not stopping.done():
                n = next(moved)
                account = n % ACCOUNTS, 1 + n % 7
                await store.write(
                    Script(
                        Statement(f"UPDATE {job.table}_left SET amount = amount - ?2 WHERE id = ?1", account),
                        Statement(
                            f"UPDATE {job.table}_right SET amount = amount + ?2 WHERE id = ?1", account
                        ),
                    ),
                    timeout=_PATIENCE_S,
                )

        await asyncio.gather(*(call() for _ in range(job.callers)))
    report(moved=next(moved))


async def look(job: Job) -> None:
    """Read both tables in one query, in a tight loop; tell what was seen, and how long all else waited."""
    left, right = (f"(SELECT sum(amount) FROM {job.table}_{side})" for side in ("left", "right"))
    short = f"SELECT {left} AS left, {right} AS right"
    long = f"{_PASSING_BY} SELECT {left} AS left, (SELECT count(*) FROM n), {right} AS right"
    sums: set[int] = set()
    seen = {"replica": 0, "primary": 0}
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        last = time.monotonic()
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            longest = max(longest, now - last - _TICK_S)
            last = now

    async with await open_store(load_settings()) as store:
        await store.synced()
        ticking = asyncio.create_task(tick())
        await asyncio.sleep(0)  # from here on it counts
        started = time.monotonic()
        for n in count():
            part = (time.monotonic() - started) / job.seconds
            if part > 1:
                break
            # At first only what is answered at once: nothing in such a loop need ever wait.
            rows = await store.read(long if part > _SHORT_ONLY and n % _EVERY_LONG == 0 else short)
            sums.add(rows[0]["left"] + rows[0]["right"])
            seen["replica" if rows.age_s else "primary"] += 1
        ticking.cancel()
        report(sums=sorted(sums), longest_s=longest, changes=store.change_count, **seen)


if __name__ == "__main__":
    do_job(keep, history, move, look)
