"""What users do to nodes all the time, over HTTP and through whichever of them answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from random import Random
from typing import Any, Final

import httpx

from tests.support.messages.message_runs import disorder
from tests.support.nodes.node_runs import PATIENCE_S, Machines, UpNode
from vox_mesh import Manifest, Store
from vox_mesh.store import new_key

READER: Final = "reader"

_PAUSE_S: Final = 0.05
_ACKED: Final = (
    "SELECT count(*) FROM a2a_messages WHERE scope_id = ? AND receiver_agent = ? AND state = 'acked'"
)
_ATTEMPTS: Final = {"max_attempts": 50, "backoff": "50ms"}
_GOOD: Final = (HTTPStatus.OK, HTTPStatus.CREATED)
_NOT_NOW: Final = (
    HTTPStatus.CONFLICT,  # another has it, or has it by now
    HTTPStatus.NOT_FOUND,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)

Body = dict[str, Any]


@dataclass(frozen=True)
class Grant:
    """A token that a client was given, when it was asked for and when it was answered."""

    token: int
    asked: float
    result: float


@dataclass
class Load:
    """Schedules graphs of jobs, contends for a lock, and sends and acknowledges messages."""

    machines: Machines
    store: Store
    random: Random
    marker: str
    jobs: list[str] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    sent: dict[str, list[str]] = field(default_factory=dict)
    done: list[tuple[str, str]] = field(default_factory=list)
    again: int = 0
    refused: int = 0
    is_over: bool = False

    @asynccontextmanager
    async def running(self, names: Sequence[str]) -> AsyncIterator[None]:
        """All of it, until the end of the block, and then until what was sent is acknowledged."""
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(self._read())
            busy = [group.create_task(self._forever(self._schedule))]
            for name in names:
                sender = f"writer-{name}"
                self.sent[sender] = []
                busy.append(group.create_task(self._forever(partial(self._contend, name))))
                busy.append(group.create_task(self._forever(partial(self._send, sender))))
            try:
                yield
                self.is_over = True
                await asyncio.wait(busy)
                await self._until_acked()
            finally:
                self.is_over = True
                reading.cancel()

    async def _forever(self, turn: Callable[[], Awaitable[None]]) -> None:
        while not self.is_over:
            await turn()
            await asyncio.sleep(_PAUSE_S)

    async def _result(self, path: str, body: Body) -> Any:
        """Have any node do it, and another if that one does not; what it answers."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                answer = await self._tried(self._any(), path, body)
                if answer is not None and answer.status_code in _GOOD:
                    return answer.json()
                await asyncio.sleep(_PAUSE_S)

    def _any(self) -> UpNode:
        return self.random.choice(list(self.machines.nodes.values()))

    async def _tried(self, node: UpNode, path: str, body: Body) -> httpx.Response | None:
        try:
            answer = await node.post(path, body)
        except httpx.TransportError:
            return None
        assert answer.status_code in _GOOD or answer.status_code in _NOT_NOW, answer.text
        self.refused += answer.status_code not in _GOOD
        return answer

    # --- jobs ------------------------------------------------------------------------------------

    async def _schedule(self) -> None:
        """A job, two that come after it, one of them a command, and one that comes after those."""
        number = len(self.jobs)
        first = self._job(number)
        one, two = self._job(number + 1, first), self._command(number + 2, first)
        graph = [first, one, two, self._job(number + 3, one, two)]
        await self._result("/v1/jobs", {"manifests": graph})
        self.jobs += map(_id_of, graph)

    def _job(self, number: int, *after: Body) -> Body:
        payload = {"n": number, "seconds": round(0.1 * self.random.random(), 3)}
        kind = f"load.{self.random.choice(['one', 'two'])}"
        return {"kind": kind, "payload": payload, "after": [_id_of(each) for each in after], **_ATTEMPTS}

    def _command(self, number: int, *after: Body) -> Body:
        script = f"sleep 0.1; : {self.marker} {number}"
        after_ids = [_id_of(each) for each in after]
        return {"command": ["/bin/sh", "-c", script], "timeout": 60, "after": after_ids, **_ATTEMPTS}

    # --- locks -----------------------------------------------------------------------------------

    async def _contend(self, name: str) -> None:
        """Want what all want, through one node; hold it for a moment, if it was to be had."""
        asked = time.monotonic()
        wanted = {"keys": ["load:shared"], "agent": f"agent-of-{name}", "ttl": "2s", "wait": "1s"}
        answer = await self._tried(self.machines.nodes[name], "/v1/locks", wanted)
        if answer is None or answer.status_code not in _GOOD:
            return
        token = answer.json()["fence_token"]
        self.grants.append(Grant(token, asked, time.monotonic()))
        await self._tried(
            self.machines.nodes[name], "/v1/locks/release", {"lock_key": "load:shared", "fence_token": token}
        )

    def assert_tokens_rose(self) -> None:
        """No token was given twice, and none that is lower than one that was known when it was asked for."""
        tokens = [grant.token for grant in self.grants]
        assert len(set(tokens)) == len(tokens)
        for grant in self.grants:
            known = [each.token for each in self.grants if each.result < grant.asked]
            assert grant.token > max(known, default=0)

    # --- messages --------------------------------------------------------------------------------

    async def _send(self, sender: str) -> None:
        key = new_key()
        payload = {"n": len(self.sent[sender])}
        await self._result("/v1/messages", {"to": READER, "sender": sender, "payload": payload, "key": key})
        self.sent[sender].append(key)

    async def _read(self) -> None:
        """Deal with each message once, and acknowledge it, forever."""
        known: set[str] = set()
        while True:
            node = self._any()
            answer = await self._tried(node, f"/v1/inbox/{READER}/claim", {"lease": "3s", "limit": 8})
            for message in answer.json() if answer is not None and answer.status_code in _GOOD else ():
                uuid = message["message_uuid"]
                if uuid in known:
                    self.again += 1
                else:
                    known.add(uuid)
                    self.done.append((message["sender_agent"], uuid))
                await self._tried(node, f"/v1/messages/{uuid}/ack", {"claim_owner": message["claim_owner"]})
            await asyncio.sleep(_PAUSE_S)

    async def _until_acked(self) -> None:
        count = sum(map(len, self.sent.values()))
        async with asyncio.timeout(PATIENCE_S):
            async for change in self.store.watch(_ACKED, (self.store.writer_id[0], READER)):
                if change.rows.value == count:
                    return

    def assert_messages_arrived(self) -> None:
        """Each message was dealt with once, and each sender's in the order in which they were sent."""
        for sender, uuids in self.sent.items():
            done = [uuid for who, uuid in self.done if who == sender]
            order = {uuid: number for number, uuid in enumerate(uuids)}
            assert sorted(done) == sorted(uuids), f"lost or doubled, of {sender}"
            assert done == uuids, f"out of order, of {sender}: {disorder([order[each] for each in done])}"


def _id_of(manifest: Body) -> str:
    return Manifest.of(**manifest).content_id
