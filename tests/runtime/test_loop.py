"""The loop of processes that stay: as `asyncio.run` does, and quicker."""

from __future__ import annotations

import asyncio
import signal

import pytest
import uvloop

from vox_mesh import Script, Settings, Statement, open_store, run


def test_it_answers_with_what_it_was_given_to_do() -> None:
    async def main() -> str:
        assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
        return "done"

    assert run(main()) == "done"


def test_ctrl_c_cancels_what_it_does() -> None:
    ended: list[str] = []

    async def main() -> None:
        signal.raise_signal(signal.SIGINT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("tidied up")
            raise

    with pytest.raises(KeyboardInterrupt):
        run(main())
    assert ended == ["tidied up"]


def test_every_home_works_on_it(settings: Settings) -> None:
    async def main() -> object:
        async with await open_store(settings) as store:
            created = Statement("DROP TABLE IF EXISTS loops"), Statement("CREATE TABLE loops (n)")
            await store.write(Script(*created))
            rows = [Script(Statement("INSERT INTO loops VALUES (?)", (n,))) for n in range(100)]
            await asyncio.gather(*(store.write(each) for each in rows))
            return (await store.read("SELECT sum(n) FROM loops")).value

    assert run(main()) == sum(range(100))
