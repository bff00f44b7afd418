"""A combiner on a real engine behind a gate, without the pauses between attempts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.store.gate import GatedEngine
from vox_mesh import Answer, Outcome, Script, Statement
from vox_mesh.store.engine import Engine
from vox_mesh.store.engines.file import FileEngine
from vox_mesh.store.engines.memory import MemoryEngine
from vox_mesh.store.schema.schema import ensure_schema
from vox_mesh.store.script import Verdict, WriterId
from vox_mesh.store.write.combiner import Combiner
from vox_mesh.store.write.idempotency_keys import IdempotencyKeyPruner
from vox_mesh.store.write.retry import RetryingCaller
from vox_mesh.store.write.sender import Sender

LONG_S = 30.0
"""A deadline that no test waits for."""


async def at_once(_: float) -> None:
    """A pause that lasts no time, in which everyone else has their turn."""
    await asyncio.sleep(0)


class Combining:
    """A combiner, its gate, and a table `t` to write to."""

    def __init__(self, gate: GatedEngine, combiner: Combiner, ledger: IdempotencyKeyPruner) -> None:
        self.gate = gate
        self.combiner = combiner
        self.ledger = ledger

    def send(self, *scripts: Script, timeout: float = LONG_S) -> asyncio.Task[list[Verdict]]:
        """Submit scripts as a caller of their own."""
        return asyncio.create_task(self.combiner.submit(scripts, timeout))

    async def busy(self, number: int = 0) -> asyncio.Task[list[Verdict]]:
        """Have a request stand at the closed gate, so that what comes next has to queue."""
        self.gate.hold()
        task = self.send(adding(number))
        await self.gate.arrival()
        return task

    async def queued(self, count: int) -> None:
        """Wait until this many callers are queued."""
        async with asyncio.timeout(10):
            while self.combiner.depth < count:  # noqa: ASYNC110  # there is no event; a few rounds of the loop
                await asyncio.sleep(0)

    async def ids(self) -> list[Any]:
        """What the table holds, in the order of arrival."""
        rows = await self.gate.query(Statement("SELECT id FROM t ORDER BY rowid"))
        return [row[0] for row in rows]


@asynccontextmanager
async def combining(path: Path | None = None, **options: Any) -> AsyncIterator[Combining]:
    """A combiner on the memory home, or on a file."""
    engine: Engine = MemoryEngine() if path is None else await FileEngine.open(path)
    gate = GatedEngine(engine)
    await ensure_schema(gate)
    ledger = IdempotencyKeyPruner(time.monotonic)
    caller = RetryingCaller(None, sleep=at_once)
    combiner = Combiner(
        Sender(gate.run, caller, WriterId("", "default", "writer"), ledger),
        caller,
        ledger,
        monotonic=time.monotonic,
        **({"max_scripts": gate.max_scripts} | options),
    )
    await combiner.submit([Script(Statement("CREATE TABLE t (id INTEGER UNIQUE, a)"))], LONG_S)
    gate.batches.clear()
    try:
        yield Combining(gate, combiner, ledger)
    finally:
        gate.release()
        await combiner.close(1.0)
        await engine.close()


def adding(number: int, *, appendable: bool = False) -> Script:
    """Adds one row and, if it need not be appendable, answers with how many there are."""
    return Script(
        Statement("INSERT INTO t (id) VALUES (?)", (number,)),
        answer=None if appendable else Answer("SELECT count(*) FROM t", columns=("n",)),
        appendable=appendable,
    )


def outcome(verdicts: Sequence[Verdict]) -> Outcome:
    """The only verdict, which must be an outcome."""
    (verdict,) = verdicts
    assert isinstance(verdict, Outcome)
    return verdict
