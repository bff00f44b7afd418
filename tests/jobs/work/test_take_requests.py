"""The memory of take requests: each agent has its own, and all of them are bounded."""

from __future__ import annotations

import pytest

from vox_mesh.jobs.work import requests
from vox_mesh.jobs.work.requests import TakeRequests


class _Jobs:
    """Jobs of any size, numbered as they are taken."""

    def __init__(self, size: int = 1) -> None:
        self.requests = TakeRequests[str](lambda job: job, lambda _: size)
        self._taken = 0

    async def take(self, agent: str, request_id: str) -> str:
        """The job that a request took."""

        async def take() -> list[str]:
            self._taken += 1
            return [str(self._taken)]

        (job,) = await self.requests.answer((agent, request_id), take)
        return job


async def test_one_agent_has_no_answer_of_another_one_forgotten() -> None:
    jobs = _Jobs()
    first = await jobs.take("ann", "1")
    own = [await jobs.take("eve", str(number)) for number in range(2_000)]
    assert await jobs.take("ann", "1") == first
    assert await jobs.take("eve", "1999") == own[-1]
    assert await jobs.take("eve", "0") != own[0], "it has had more requests since than are remembered"
    jobs.requests.forget("ann", [first])
    assert await jobs.take("ann", "1") != first


async def test_the_bytes_of_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_ENTRY_BYTES", 0)
    monkeypatch.setattr(requests, "MAX_BYTES_OF_AGENT", 30)
    monkeypatch.setattr(requests, "MAX_BYTES", 40)
    jobs = _Jobs(10)
    own = [await jobs.take("eve", str(number)) for number in range(4)]
    first = [await jobs.take(name, "1") for name in ("ann", "ben")]
    assert jobs.requests._size == 40
    assert [await jobs.take(name, "1") for name in ("ann", "ben")] == first
    assert [await jobs.take("eve", number) for number in ("2", "3")] == own[2:]
    assert await jobs.take("eve", "1") != own[1]
    huge = _Jobs(31)
    assert await huge.take("eve", "1") != await huge.take("eve", "1"), "too large to be remembered"
    assert huge.requests._size == 0
