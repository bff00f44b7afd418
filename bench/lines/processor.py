"""Lines on processor time: what one operation at a time costs, whatever the disk and other programs do."""

from __future__ import annotations

from typing import Final

from bench.environment import BenchEnvironment
from bench.figures import Figure
from bench.measure import alternate, processor_us
from bench.raw import raw_file
from tools.homes import FILE
from vox_mesh import Mesh

_BODY: Final = {"task": "review the change to the parser", "files": ["src/parser/lexer.py"], "step": 42}
_RAW: Final = "raw"


async def one_at_a_time(environment: BenchEnvironment) -> list[Figure]:
    """One job scheduled, one lock taken and released, one message sent, by one caller in a file."""
    folder, seconds = environment.folder, environment.pace.seconds
    async with Mesh.open(FILE.settings(folder, None, scope_id="bench")) as node:

        async def schedule() -> None:
            await node.jobs.schedule("noop", {"step": 42})

        async def pair() -> None:
            await node.locks.release(await node.locks.acquire("task:42"))

        async def send() -> None:
            await node.messages.send("receiver", _BODY, sender="sender")

        with raw_file(str(folder / "raw.db")) as raw:

            async def insert() -> None:
                raw.insert()

            calls = {"enqueue": schedule, "lock-pair": pair, "send": send, _RAW: insert}
            sides = {name: (lambda call=call: processor_us(call, seconds)) for name, call in calls.items()}
            found = await alternate(sides, environment.pace.rounds)
    what = {
        "enqueue": "a job scheduled",
        "lock-pair": "a lock taken and released",
        "send": "a message sent",
    }
    return [
        Figure(
            f"cpu-{name}-file",
            f"one caller, file: processor time of {done} / of a raw sqlite3 insert",
            "us",
            found[name],
            found[_RAW],
        )
        for name, done in what.items()
    ]
