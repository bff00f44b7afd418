"""`python -m bench.written_pages`: the bytes and pages that a job, a message and a lock cost, by table.

Each is done one at a time, in a database file without other work. It counts pages, in the write-ahead log and
in the file, and no time: other programs on the machine change nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import struct
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from tools.homes import FILE
from vox_mesh import JobContext, Mesh
from vox_mesh.node import MeshNode

_PAGE: Final = 4_096
_LOG_HEADER: Final = 32
_FRAME_HEADER: Final = 24
_BEFORE: Final = 100
_SMALLEST_BYTES: Final = 10
_SMALLEST_PAGES: Final = 0.05
_KIND: Final = "bench.work"
_OTHERS: Final = "free, or map of pages"
_BODY: Final = {"task": "review the change to the parser", "files": ["src/parser/lexer.py"], "step": 42}

Operation = Callable[[int], Awaitable[object]]


class Content(NamedTuple):
    """What is in a file: the bytes of each table and index, in its rows and in its pages, and whose pages."""

    payload: dict[str, int]
    stored: dict[str, int]
    owners: dict[int, str]


class Watched:
    """A database file, whose log is kept from being emptied while a snapshot is open."""

    def __init__(self, path: Path) -> None:
        self._log = path.with_name(path.name + "-wal")
        self._reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
        self.close = self._reader.close

    def snapshot(self) -> Content:
        """Return what is in the file now, and hold on to it."""
        if self._reader.in_transaction:
            self._reader.execute("COMMIT")
        self._reader.execute("BEGIN")
        rows = self._reader.execute("SELECT name, pageno, payload FROM dbstat").fetchall()
        payload, stored, owners = Counter[str](), Counter[str](), {1: "first page of the file"}
        for name, page, size in rows:
            payload[name] += size
            stored[name] += _PAGE
            owners.setdefault(page, name)
        return Content(payload, stored, owners)

    def frames(self) -> list[tuple[int, bool]]:
        """Return the pages in the log, in order, and whether a transaction ends with each."""
        data = self._log.read_bytes()
        salt, found = data[16:24], []
        for at in range(_LOG_HEADER, len(data) - _FRAME_HEADER, _FRAME_HEADER + _PAGE):
            page, size = struct.unpack_from(">II", data, at)
            if data[at + 8 : at + 16] != salt:  # left from before the log was begun again
                break
            found.append((page, size > 0))
        return found


async def measure(count: int) -> list[str]:
    """Do this many of each; return the report."""
    with tempfile.TemporaryDirectory(prefix="vox-pages-") as folder:
        settings = FILE.settings(Path(folder), None, node_id="one", tick=3_600.0)
        async with Mesh.open(settings) as node:
            with closing(Watched(settings.db_path)) as file:
                lines: list[str] = []
                for name, operation in (await _operations(node)).items():
                    lines += [*await _measure(name, operation, count, file), ""]
                return lines


async def _operations(node: MeshNode) -> dict[str, Operation]:
    @node.worker.handles(_KIND)
    async def work(context: JobContext) -> dict[str, int]:
        return {"answer": 42}

    await node.worker.start(concurrency=1)

    async def job(number: int) -> None:
        scheduled = await node.jobs.schedule(_KIND, {"n": number})
        await node.jobs.wait(scheduled.job_id, timeout=60)

    async def message(number: int) -> None:
        await node.messages.send("ada", _BODY, sender="bob")
        await node.messages.ack(*await node.messages.poll_inbox_from_db("ada"))

    async def lock(number: int) -> None:
        await node.locks.release(await node.locks.acquire(f"task:{number}", agent="ada"))

    return {"job": job, "message": message, "lock": lock}


async def _measure(name: str, operation: Operation, count: int, file: Watched) -> list[str]:
    for number in range(_BEFORE):
        await operation(-1 - number)
    before, begun = file.snapshot(), len(file.frames())
    for number in range(count):
        await operation(number)
    written = file.frames()[begun:]
    after = file.snapshot()
    pages = Counter(after.owners.get(page, _OTHERS) for page, _ in written)
    grown = {each: (size - before.payload.get(each, 0)) / count for each, size in after.payload.items()}
    stored = {each: (size - before.stored.get(each, 0)) / count for each, size in after.stored.items()}
    size, commits = sum(stored.values()), sum(ends for _, ends in written) / count
    lines = [
        f"{name}: {size:.0f} B, {len(written) / count:.1f} pages in {commits:.1f} transactions",
        f"  {'rows B':>7}  {'file B':>7}  {'pages':>6}",
    ]
    for each in sorted({*pages, *grown}, key=lambda each: -pages[each]):
        if pages[each] / count >= _SMALLEST_PAGES or grown.get(each, 0) >= _SMALLEST_BYTES:
            sizes = f"{grown.get(each, 0):7.0f}  {stored.get(each, 0):7.0f}"
            lines.append(f"  {sizes}  {pages[each] / count:6.2f}  {each}")
    return lines


def main() -> None:
    """Measure, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="of each")
    print("\n".join(asyncio.run(measure(parser.parse_args().count))))


if __name__ == "__main__":
    main()
