"""A loop of our own keeps what asyncio promises, and houses end as processes do."""

from __future__ import annotations

import asyncio
import gc
import random
import warnings
from collections.abc import Coroutine, Iterator
from contextvars import Context
from typing import Any

import pytest

from proof.simulate.loop import SimulatedLoop, SimulatedProcess, Stuck, new_loop

_SEEDS = range(20)


@pytest.fixture
def loop() -> Iterator[SimulatedLoop]:
    made = new_loop(random.Random(1).random)
    yield made
    made.close()


def run_scenario(seed: int, *ways: Coroutine[Any, Any, None]) -> None:
    """Play each in a house of its own."""

    loop = new_loop(random.Random(seed).random)

    async def all_of_them() -> None:
        await asyncio.gather(
            *(loop.begin(SimulatedProcess(f"house {place}"), channel) for place, channel in enumerate(ways))
        )

    loop.run_until_complete(all_of_them())
    loop.close()


async def answer(say: list[str], word: str) -> None:
    for number in range(3):
        say.append(f"{word}{number}")
        await asyncio.sleep(0)


def test_houses_take_turns_in_every_order_and_each_seed_has_its_own() -> None:
    def order(seed: int) -> tuple[str, ...]:
        said: list[str] = []
        run_scenario(seed, answer(said, "a"), answer(said, "b"))
        return tuple(said)

    orders = [order(seed) for seed in _SEEDS]
    assert orders == [order(seed) for seed in _SEEDS]
    assert len(set(orders)) > 5
    for each in orders:
        assert [word for word in each if word[0] == "a"] == ["a0", "a1", "a2"]


@pytest.mark.parametrize("seed", _SEEDS)
def test_within_a_house_what_was_begun_first_comes_first(seed: int) -> None:
    said: list[int] = []

    async def many() -> None:
        loop = asyncio.get_running_loop()
        for number in range(10):
            loop.call_soon(said.append, number)
        await asyncio.gather(*(asyncio.sleep(0) for _ in range(3)))

    run_scenario(seed, many(), many())
    assert sorted(said) == sorted([*range(10), *range(10)])
    firsts = {number: said.index(number) for number in range(10)}
    assert list(firsts.values()) == sorted(firsts.values())


def test_the_order_of_a_set_of_tasks_does_not_hang_on_where_these_lie(loop: SimulatedLoop) -> None:
    async def numbers() -> list[int]:
        apart = [asyncio.create_task(asyncio.sleep(0)) for _ in range(3)]
        future = asyncio.get_running_loop().create_future()
        await asyncio.wait(apart)
        return [hash(each) for each in (*apart, future)]

    first = loop.run_until_complete(numbers())
    assert first == sorted(set(first))
    other = new_loop(random.Random(1).random)
    assert other.run_until_complete(numbers()) == first
    other.close()


def test_time_jumps_to_the_next_timer_and_timers_ring_in_order(loop: SimulatedLoop) -> None:
    rung: list[tuple[str, float]] = []

    async def wait(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        rung.append((name, round(loop.now, 3)))

    async def main() -> None:
        await asyncio.gather(wait("late", 3_600), wait("soon", 0.5), wait("later", 7))

    loop.run_until_complete(main())
    assert rung == [("soon", 0.5), ("later", 7.0), ("late", 3_600.0)]


def test_deadlines_and_cancellation_are_those_of_asyncio(loop: SimulatedLoop) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        assert loop.now == pytest.approx(5, abs=0.01)
        task = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(60))
            raise ValueError("wrong")

    with pytest.raises(ExceptionGroup):
        loop.run_until_complete(main())
    assert loop.now < 10


def test_what_another_thread_would_do_is_done_here(loop: SimulatedLoop) -> None:
    async def main() -> list[int]:
        return await asyncio.to_thread(sorted, [2, 1])

    assert loop.run_until_complete(main()) == [1, 2]


def test_a_paused_house_stands_still_and_goes_on_where_it_was(loop: SimulatedLoop) -> None:
    seen: list[float] = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(1)
            seen.append(round(loop.now, 2))

    async def main() -> None:
        process = SimulatedProcess("paused")
        loop.begin(process, tick())
        await asyncio.sleep(2.5)
        loop.pause(process)
        await asyncio.sleep(10)
        assert seen == [1.0, 2.0]
        loop.resume(process)
        await asyncio.sleep(1.2)

    loop.run_until_complete(main())
    assert seen == [1.0, 2.0, 12.5, 13.5]


def test_a_razed_house_does_nothing_more_not_even_at_its_end(
    loop: SimulatedLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    async def incarnation() -> None:
        try:
            await asyncio.sleep(1)
            said.append("lived")
            await asyncio.sleep(60)
        finally:
            said.append("ended")
            await asyncio.sleep(1)

    async def main() -> None:
        process = SimulatedProcess("razed")
        living = loop.begin(process, incarnation())
        loop.begin(process, incarnation())
        await asyncio.sleep(2)
        loop.kill(process)
        loop.begin(process, incarnation())
        gc.collect()
        await asyncio.sleep(100)
        assert not living.done()

    loop.run_until_complete(main())
    assert said == ["lived", "lived"]
    loop.close()
    gc.collect()
    assert capsys.readouterr() == ("", "")


def test_a_coroutine_passed_to_a_task_that_never_starts_is_closed_with_it() -> None:
    loop = new_loop(random.Random(1).random)

    async def passed_on(inner: Coroutine[Any, Any, None]) -> None:
        await inner

    async def incarnation() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            asyncio.create_task(passed_on(asyncio.sleep(1)))  # noqa: RUF006 - it never starts

    async def main() -> None:
        loop.begin(SimulatedProcess("razed"), incarnation())
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop.close()
        gc.collect()
    assert [str(each.message) for each in caught] == []


def test_a_fuse_razes_a_house_in_the_middle_of_what_it_does(loop: SimulatedLoop) -> None:
    said: list[str] = []

    async def main() -> None:
        process = SimulatedProcess("lit")
        loop.begin(process, answer(said, "a"))
        process.fuse = 1, lambda: loop.kill(process)
        await asyncio.sleep(10)

    loop.run_until_complete(main())
    assert said == ["a0", "a1"]


def test_what_begins_from_nothing_belongs_to_the_house_it_was_begun_in(loop: SimulatedLoop) -> None:
    said: list[str] = []

    async def begin() -> None:
        begun = asyncio.create_task(answer(said, "task"), context=Context())
        asyncio.get_running_loop().call_soon(said.append, "call", context=Context())
        await begun

    async def main() -> None:
        process = SimulatedProcess("here")
        loop.begin(process, begin())
        process.fuse = 0, lambda: loop.kill(process)
        await asyncio.sleep(10)

    loop.run_until_complete(main())
    assert said == []


def test_each_house_goes_by_its_own_clock(loop: SimulatedLoop) -> None:
    async def nap() -> float:
        began = loop.time()
        await asyncio.sleep(10)
        assert loop.time() - began == pytest.approx(10)
        return loop.now

    async def main() -> list[float]:
        houses = SimulatedProcess("slow", rate=0.5), SimulatedProcess("fast", rate=2.0, ahead_s=1_000)
        return list(await asyncio.gather(*(loop.begin(process, nap()) for process in houses)))

    assert loop.run_until_complete(main()) == pytest.approx([20, 5], abs=0.01)


def test_who_waits_for_nothing_is_notified(loop: SimulatedLoop) -> None:
    with pytest.raises(Stuck, match="nothing is left"):
        loop.run_until_complete(asyncio.Event().wait())


def test_an_error_that_no_one_takes_is_reported_with_its_house(loop: SimulatedLoop) -> None:
    failures: list[tuple[str, str]] = []
    loop.failed = lambda process, error: failures.append((process.name, str(error)))

    def fail() -> None:
        raise ValueError("wrong")

    async def main() -> None:
        async def begin() -> None:
            asyncio.get_running_loop().call_soon(fail)

        await loop.begin(SimulatedProcess("here"), begin())
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    assert failures == [("here", "wrong")]
