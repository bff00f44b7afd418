"""Judges of what strangers got and of storms of writers, and the strangers themselves."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

from proof.chaos.fuzzers import REQUESTS, FuzzingClients
from proof.checkers.fuzzers import FUZZER_CHECKS
from proof.history import Event, Recorder
from tests.proof.checkers.story import Story, faults
from tools.homes import FILE
from vox_mesh import Mesh

_PATIENCE_S = 20.0


def _story(**notes: list[dict[str, Any]]) -> Story:
    """Notes of a player and the stage, by their kind with `_` for `.`."""
    story = Story()
    for kind, each in notes.items():
        for data in each:
            story.node("ann").note(kind.replace("_", "."), **data)
    return story


def _send(status: int) -> dict[str, Any]:
    return {"player": "ann", "call": "half", "status": status, "refused": 400 <= status < 500}


def test_what_fails_the_service_is_found_and_what_is_refused_is_not() -> None:
    good = _story(stranger_call=[_send(401), _send(413), _send(429)])
    assert faults(FUZZER_CHECKS, "no-5xx", good) == []
    assert faults(FUZZER_CHECKS, "refused-changes-nothing", good) == []
    bad = _story(stranger_call=[_send(401), _send(500)])
    assert faults(FUZZER_CHECKS, "no-5xx", bad) == ["ann answered 500 to 'half'"]


def test_a_call_that_is_obeyed_or_leaves_a_row_is_found() -> None:
    obeyed = _story(stranger_call=[_send(200)])
    assert faults(FUZZER_CHECKS, "refused-changes-nothing", obeyed) == ["ann obeyed 'half': 200"]
    rows = [{"table": "jobs", "rows": 2}, {"table": "locks", "rows": 0}]
    left = _story(stranger_call=[_send(401)], final_strangers=rows)
    assert faults(FUZZER_CHECKS, "refused-changes-nothing", left) == ["2 rows of jobs are by a stranger"]


def test_a_storm_counts_what_was_done_and_perhaps_what_no_one_knows() -> None:
    wrote = [{"name": "a", "done": 5, "unknown": 2}]
    for n in (5, 6, 7):
        assert faults(FUZZER_CHECKS, "storms-counted", _story(storm_wrote=wrote, **_rows(n))) == []
    for n in (4, 8):
        (fault,) = faults(FUZZER_CHECKS, "storms-counted", _story(storm_wrote=wrote, **_rows(n)))
        assert fault == f"a counted {n}, of 5 writes that were done and 2 of unknown fate"
    lost = _story(storm_wrote=wrote, final_storm=[{"name": "killed-in-the-middle", "n": 9}])
    assert faults(FUZZER_CHECKS, "storms-counted", lost) != []


def _rows(n: int) -> dict[str, list[dict[str, Any]]]:
    return {"final_storm": [{"name": "a", "n": n}]}


async def test_a_node_refuses_all_that_strangers_can_say(tmp_path: Path) -> None:
    heard: list[Event] = []
    everything = asyncio.Event()

    def hear(event: Event) -> None:
        heard.append(event)
        if {each.data["call"] for each in heard} == {request.name for request in REQUESTS} | {"noise"}:
            everything.set()

    recorder = Recorder("stage", 1, lambda: 0.0, hear)
    async with Mesh.open(
        FILE.settings(tmp_path, None, node_id="ann", http=True, token="a-token-that-no-stranger-knows")
    ) as ann:
        url = ann.presence.activity.control_addr
        assert url is not None
        fuzzers = FuzzingClients({"ann": url}, "secret", random.Random(1), recorder, rest_s=0.0)
        calling = asyncio.create_task(fuzzers.run())
        async with asyncio.timeout(_PATIENCE_S):
            await everything.wait()
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        assert [event.data for event in heard if not event.data["refused"]] == []
        assert not await ann.locks.holders()
