"""`python -m bench.compactions`: how a replica fares while the server compacts its log again and again.

A server with a database of `--size-mb` is written to at a steady `--rate-mb-s` of log until it has compacted
its log `--compactions` times. Meanwhile one replica follows, watches and reads. It prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sqlite3
import tempfile
import time
from collections import deque
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import orjson

from bench import workload
from tools.homes import MESH, MESH_REPLICA
from tools.server_log import ServerLog
from tools.sqld import Server
from vox_mesh import Script, Settings, Statement, Store, open_store
from vox_mesh.store.replica.paths import replica_path
from vox_mesh.store.replica.replica import ReplicaState, ReplicaStatus

_MB: Final = 1_000_000
_FRAME_BYTES: Final = 24 + workload.PAGE
_FLAGS: Final = ("--checkpoint-interval-s", "60", "--max-concurrent-connections", "256", "--max-log-size")
_WRITES_PER_S: Final = 10
_LOOK_S: Final = 0.05
_LATE_S: Final = 1.0
_DEADLINE_S: Final = 60.0
_COPY_S: Final = 600.0
_CATCH_UP_S: Final = 60.0

_UPDATE: Final = "UPDATE bench_pages SET n = n + 1 WHERE id IN (SELECT value FROM json_each(?))"
_SUM: Final = "SELECT count(*), sum(n) FROM bench_pages"
_READ: Final = "SELECT n FROM bench_pages WHERE id = 1"


@dataclass
class Record:
    """What was seen of the replica, in seconds unless it says otherwise."""

    elapsed: float = 0.0
    in_touch: float = 0.0
    on_time: float = 0.0
    longest_lag: float = 0.0
    compactions: int = 0
    reads: int = 0
    reads_by_replica: int = 0
    snapshots_took: list[float] = field(default_factory=list)


class Observer:
    """Compares the replica with the server's log, many times a second."""

    def __init__(self, log: ServerLog, replica: Store) -> None:
        self.record = Record()
        self._log = log
        self._replica = replica
        self._head = log.head()
        self._unseen: deque[tuple[float, int]] = deque()
        self._compacting_since: float | None = None

    async def observe(self) -> None:
        """Look until cancelled."""
        before = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_S)
            now = time.monotonic()
            self._look(now, now - before)
            before = now

    def _look(self, now: float, passed: float) -> None:
        record, head, status = self.record, self._log.head(), status_of(self._replica)
        if head.end > self._head.end:
            self._unseen.append((now, head.end))
        frame = -1 if status.frame is None else status.frame
        while self._unseen and self._unseen[0][1] <= frame + 1:
            self._unseen.popleft()
        lag = now - self._unseen[0][0] if self._unseen else 0.0
        record.elapsed += passed
        record.in_touch += passed * (status.state is ReplicaState.IN_TOUCH)
        record.on_time += passed * (lag <= _LATE_S)
        record.longest_lag = max(record.longest_lag, lag)
        if head.first != self._head.first:
            record.compactions += 1
            self._compacting_since = now
        elif self._compacting_since is not None and not self._log.is_compacting:
            record.snapshots_took.append(now - self._compacting_since)
            self._compacting_since = None
        self._head = head

    async def read(self) -> None:
        """Read one row again and again, as any caller would; count who answers."""
        while True:
            rows = await self._replica.read(_READ)
            self.record.reads += 1
            self.record.reads_by_replica += rows.age_s > 0
            await asyncio.sleep(_LOOK_S)


def status_of(store: Store) -> ReplicaStatus:
    """The status of the replica, without asking the server."""
    status = store.replica_status
    assert status is not None
    return status


async def _watch(store: Store) -> None:
    async for _ in store.watch(_READ):
        pass


async def _write(
    writer: Store, log: ServerLog, pages: int, rate: float, observer: Observer, wanted: int
) -> None:
    """Write at the rate, in log bytes, until the server has compacted often enough and is done with it."""
    rng = random.Random(0)
    began, first = time.monotonic(), log.head().end
    at_once = max(1, round(rate * _MB / _WRITES_PER_S / _FRAME_BYTES))
    while observer.record.compactions < wanted or log.is_compacting:
        ids = orjson.dumps([rng.randint(1, pages) for _ in range(at_once)]).decode()
        await writer.write(Script(Statement(_UPDATE, (ids,))), timeout=_DEADLINE_S)
        written_mb = (log.head().end - first) * _FRAME_BYTES / _MB
        await asyncio.sleep(max(0.0, began + written_mb / rate - time.monotonic()))


async def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Run the whole measurement."""
    pages = round(arguments.size_mb * _MB / workload.PAGE)
    with Server(flags=(*_FLAGS, str(arguments.log_mb))) as server:
        log = ServerLog(server)
        settings = MESH_REPLICA.settings(folder / "replica", server, db_deadline="60s")
        async with await open_store(MESH.settings(folder / "writer", server, db_deadline="60s")) as writer:
            await workload.fill_pages(writer, pages)
            began = time.monotonic()
            async with await open_store(settings) as replica:
                async with asyncio.timeout(_COPY_S):
                    await replica.synced()
                first_copy = time.monotonic() - began
                observer = Observer(log, replica)
                before, first = status_of(replica), log.head().end
                tasks = [
                    asyncio.create_task(each)
                    for each in (observer.observe(), observer.read(), _watch(replica))
                ]
                await _write(writer, log, pages, arguments.rate_mb_s, observer, arguments.compactions)
                for task in tasks:
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task
                async with asyncio.timeout(_CATCH_UP_S):
                    await replica.synced()
                after, end = status_of(replica), log.head().end
                truth = tuple((await replica.read(_SUM, fresh=True, timeout=_DEADLINE_S))[0])
        is_same = _sum_of(settings) == truth
    log_bytes = (end - first) * _FRAME_BYTES
    return {
        "size_mb": arguments.size_mb,
        "log_mb": arguments.log_mb,
        "rate_mb_s": round(log_bytes / _MB / observer.record.elapsed, 2),
        **_shares(observer.record),
        "first_copy_s": round(first_copy, 1),
        "start_overs": after.start_overs - before.start_overs,
        "snapshots": after.snapshots - before.snapshots,
        "log_written_mb": round(log_bytes / _MB, 1),
        "fetched_mb": round((after.fetched_bytes - before.fetched_bytes) / _MB, 1),
        "fetched_beyond_log": round((after.fetched_bytes - before.fetched_bytes) / log_bytes - 1, 4),
        "same_as_primary": is_same,
    }


def _shares(record: Record) -> dict[str, object]:
    took = sorted(record.snapshots_took)
    return {
        "compactions": record.compactions,
        "elapsed_s": round(record.elapsed, 1),
        "in_touch": round(record.in_touch / record.elapsed, 4),
        f"at_most_{_LATE_S:g}_s_behind": round(record.on_time / record.elapsed, 4),
        "longest_lag_s": round(record.longest_lag, 2),
        "reads_by_replica": round(record.reads_by_replica / max(1, record.reads), 4),
        "snapshot_took_s": [round(took[0], 2), round(took[len(took) // 2], 2), round(took[-1], 2)]
        if took
        else [],
    }


def _sum_of(settings: Settings) -> tuple[int, int]:
    path = replica_path(settings.db_path, "1")
    with closing(sqlite3.connect(f"file:{path}?immutable=1&mode=ro", uri=True)) as connection:
        found: tuple[int, int] = connection.execute(_SUM).fetchone()
        return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.compactions", description=__doc__)
    parser.add_argument(
        "--size-mb", type=int, default=300, metavar="MB", help="size of the database (default: 300)"
    )
    parser.add_argument(
        "--log-mb", type=int, default=200, metavar="MB", help="log size to compact at (default: 200)"
    )
    parser.add_argument(
        "--compactions", type=int, default=10, metavar="N", help="compactions to see (default: 10)"
    )
    parser.add_argument(
        "--rate-mb-s", type=float, default=1.0, metavar="R", help="log written, in MB/s (default: 1)"
    )
    parser.add_argument(
        "--folder", type=Path, default=None, help="where the replica lies (default: temporary)"
    )
    return parser.parse_args()


def main() -> None:
    """Measure, and print the result."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        result = asyncio.run(measure(arguments, Path(folder)))
    print(orjson.dumps(result, option=orjson.OPT_INDENT_2).decode())


if __name__ == "__main__":
    main()
