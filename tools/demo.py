"""The demo: three nodes write together on one file; one is killed in the middle and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Final

from vox_mesh import Mesh, MeshError, Script, Statement, Store, load_settings

_WRITERS: Final = ("planner", "coder", "reviewer")
_VICTIM: Final = "coder"
_COUNT: Final = 8_000
_FOLDER: Final = Path(".vox/demo")
_DEADLINE_S: Final = 60.0


class Failed(Exception):
    """The demo can't go on."""


class Writer:
    """A writing process, and what became of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kills = 0
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process, for the first time or again."""
        command = (sys.executable, "-m", "tools.demo_writer", self.name, str(_COUNT))
        self._process = await asyncio.create_subprocess_exec(
            *command,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "VOX_MESH_NODE_ID": self.name},
        )
        _say(f"{self.name:<9} starts as process {self._process.pid}")

    async def kill(self) -> None:
        """`kill -9`: no chance to tidy up."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()
        self.kills += 1

    async def result(self) -> int:
        """Wait for the end; how many writes it sent that had been applied before."""
        assert self._process is not None
        output, _ = await self._process.communicate()
        if self._process.returncode != 0:
            raise Failed(f"{self.name} failed with exit code {self._process.returncode}")
        return int(output)

    def stop(self) -> None:
        """End the process if it still runs."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


async def run() -> bool:
    """Run the demo; whether every write is there exactly once, and the log proves it."""
    shutil.rmtree(_FOLDER, ignore_errors=True)
    os.environ |= {
        "VOX_MESH_ENABLED": "1",
        "VOX_DB_URL": "",
        "VOX_DB_PATH": str(_FOLDER / "local.db"),
        "VOX_MESH_HOME": str(_FOLDER),
    }
    writers = [Writer(name) for name in _WRITERS]
    async with Mesh.open_command(load_settings(_env_file=None)) as mesh:
        store = mesh.store
        # No UNIQUE here: a write that were applied twice would show.
        await store.write(Script(Statement("CREATE TABLE demo_writes (writer TEXT, n INTEGER)")))
        await store.write(Script(Statement("CREATE INDEX demo_by_n ON demo_writes (writer, n)")))
        _say(f"three nodes write {_COUNT:,} numbers each to {_FOLDER / 'local.db'}")
        started = time.monotonic()
        try:
            async with asyncio.timeout(_DEADLINE_S):
                resent = await _write_with_a_kill(store, writers)
        finally:
            for writer in writers:
                writer.stop()
        seconds = time.monotonic() - started
        return await _report(mesh, writers, resent, seconds)


async def _write_with_a_kill(store: Store, writers: list[Writer]) -> list[int]:
    await asyncio.gather(*(writer.start() for writer in writers))
    victim = next(writer for writer in writers if writer.name == _VICTIM)
    async for change in store.watch("SELECT count(*) FROM demo_writes WHERE writer = ?", (_VICTIM,)):
        done = change.rows.value
        if done >= _COUNT // 3:
            break
    await victim.kill()
    _say(f"{_VICTIM:<9} is killed with -9 in the middle of its work, {done:,} writes in")
    await victim.start()
    return await asyncio.gather(*(writer.result() for writer in writers))


async def _report(mesh: Mesh, writers: list[Writer], resent: list[int], seconds: float) -> bool:
    rows = await mesh.store.read(
        "SELECT writer, count(*) AS rows, count(DISTINCT n) AS numbers FROM demo_writes GROUP BY writer"
    )
    found = {row["writer"]: row for row in rows}
    print("\nwriter      wanted  written  missing  doubled  killed  sent again")
    sound = True
    for writer, again in zip(writers, resent, strict=True):
        row = found[writer.name]
        missing, doubled = _COUNT - row["numbers"], row["rows"] - row["numbers"]
        sound = sound and missing == 0 and doubled == 0
        print(
            f"{writer.name:<10}{_COUNT:>8,}{row['rows']:>9,}{missing:>9,}{doubled:>9,}"
            f"{writer.kills:>8}{again:>12,}"
        )
    total = sum(row["rows"] for row in rows)
    print(f"\n{total:,} writes in {seconds:.1f} s, start-up of the processes included.")
    chains = await mesh.oplog.verify()
    entries = sum(chain.entries for chain in chains)
    sound = sound and not any(chain.problem for chain in chains)
    print(
        f"Every write is there exactly once, and {entries:,} entries of {len(chains)} chains prove it."
        if sound
        else "THIS IS WRONG: please report it."
    )
    here = f"VOX_MESH_ENABLED=1 VOX_MESH_HOME={_FOLDER} VOX_DB_PATH={_FOLDER / 'local.db'} .venv/bin/vox-mesh"
    print(f"\nLook around:\n  {here} nodes --all\n  {here} oplog tail\n  {here} oplog verify")
    return sound


def _say(line: str) -> None:
    print(f"  {line}", flush=True)


if __name__ == "__main__":
    try:
        raise SystemExit(0 if asyncio.run(run()) else 1)
    except MeshError as error:
        raise SystemExit(f"demo: {error.line}") from None
    except Failed as error:
        raise SystemExit(f"demo: {error}") from None
    except TimeoutError:
        raise SystemExit(f"demo: it is not done after {_DEADLINE_S:g} s") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
