"""One orchestrator of the demo: a node that writes its numbers, sixteen at a time, each as an op of its log.

Started again after a crash, it can't know which of its last writes were applied. So it sends the latest
ones again, under the same keys: those that were applied answer as they did, and nothing is doubled.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from typing import Final

from vox_mesh import Mesh, MeshError, Op, Script, Statement, Store
from vox_mesh.model import ulid
from vox_mesh.model.canonical import canonical

CALLERS: Final = 16
_OVERLAP: Final = 3  # how many of its last writes each caller sends again
_EPOCH_MS: Final = 1_700_000_000_000


def key_of(writer: str, number: int) -> str:
    """The key of a write: the same whenever it is sent."""
    chance = int.from_bytes(hashlib.sha256(writer.encode()).digest()[:10])
    return ulid.encode(_EPOCH_MS + number, chance)


async def write_stripe(store: Store, writer: str, caller: int, count: int) -> int:
    """Write every sixteenth number; how many of them had been applied before."""
    last = await store.read(
        "SELECT coalesce(max(n), 0) FROM demo_writes WHERE writer = ? AND n % ? = ?",
        (writer, CALLERS, caller),
    )
    first = max(caller or CALLERS, last.value - (_OVERLAP - 1) * CALLERS)
    repeated = 0
    for number in range(first, count + 1, CALLERS):
        insert = Statement("INSERT INTO demo_writes (writer, n) VALUES (?, ?)", (writer, number))
        op = Op("demo.wrote", canonical({"n": number}))
        outcome = await store.write(Script(insert, key=key_of(writer, number), op=op))
        repeated += outcome.repeated
    return repeated


async def write_all(writer: str, count: int) -> int:
    """Write the numbers 1 to `count`, each once; how many were sent twice."""
    async with Mesh.open() as mesh:
        mesh.presence.activity.text = f"writes {count:,} numbers"
        await mesh.run_once()  # so that others see it now, and not with the next tick
        stripes = (write_stripe(mesh.store, writer, caller, count) for caller in range(CALLERS))
        return sum(await asyncio.gather(*stripes))


if __name__ == "__main__":
    try:
        print(asyncio.run(write_all(sys.argv[1], int(sys.argv[2]))))
    except MeshError as error:
        raise SystemExit(f"{sys.argv[1]}: {error.line}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
