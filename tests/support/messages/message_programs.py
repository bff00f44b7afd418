"""Programs that send and receive messages: real processes, which may be killed at any moment.

`python -m tests.support.messages.message_programs JOB`, with the settings in the environment. What a program
has done is written to a file before any answer: one that is started again goes on where the last one was.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tests.support.locks.lock_programs import orders
from tests.support.running.jobs import report
from vox_mesh import Mesh
from vox_mesh.errors import NotHolder
from vox_mesh.messages import consumer
from vox_mesh.model.base.ulid import derive_ulid
from vox_mesh.model.messages.records import Message, MessageState
from vox_mesh.node import MeshNode

Facts = dict[str, Any]

_PATIENCE_S: Final = 100.0
_FAMILY: Final = "01J00000000000000000000000"


class Lines:
    """A file to which several processes add lines. What is written outlives the process."""

    def __init__(self, path: str) -> None:
        Path(path).touch()
        self._reading = Path(path).open()  # noqa: SIM115 - for as long as the process lives
        self._writing = os.open(path, os.O_WRONLY | os.O_APPEND)

    def new(self) -> Iterator[list[str]]:
        """What has been added since the last time, in words."""
        return (line.split() for line in self._reading)

    def add(self, *words: object) -> None:
        """Add a line, whole."""
        os.write(self._writing, (" ".join(str(word) for word in words) + "\n").encode())


class MessagingAgent:
    """A client that sends or receives, and halts where the job says so until it is asked to go on."""

    def __init__(self, mesh: MeshNode, job: Facts) -> None:
        self.mesh = mesh
        self.job = job
        self.written = Lines(job["path"])
        self._follow_ups = asyncio.Queue[Facts]()

    async def live(self, work: Coroutine[None, None, None]) -> None:
        """Do all of the work, and hear what the test has to say."""
        async with asyncio.TaskGroup() as group:
            group.create_task(work)
            async for order in orders():
                self._follow_ups.put_nowait(order)

    async def halt_at(self, number: int) -> None:
        """Wait, if it is time to."""
        if number in self.job["halts"]:
            await self._follow_ups.get()


class AgentSender(MessagingAgent):
    """Sends each message of some agents once, as far as it knows; and again, if it does not know."""

    def __init__(self, mesh: MeshNode, job: Facts) -> None:
        super().__init__(mesh, job)
        self._next = dict.fromkeys(job["agents"], 0)
        for agent, _ in self.written.new():
            self._next[agent] += 1

    async def send_all(self) -> None:
        """Send what is left for all agents."""
        await asyncio.gather(*(self._send_for(agent) for agent in self._next))
        report(sent_all=True)

    async def _send_for(self, agent: str) -> None:
        pace = self.job["pace"]
        for number in range(self._next[agent], self.job["messages"]):
            await self.halt_at(number)
            sender = f"{agent}-{number}" if self.job["strangers"] else agent
            message = await self.mesh.messages.send(
                self.job["to"], {"n": number}, sender=sender, key=derive_ulid(_FAMILY, f"{agent} {number}")
            )
            self.written.add(agent, number)
            kept = {"spooled": number} if message.state == MessageState.SPOOLED else {}
            report(agent=agent, sent=number, **kept)
            if pace and number % pace == pace - 1:
                assert await self.mesh.messages.wait_for_ack(message, _PATIENCE_S), (
                    f"{agent}'s {number} was not acked"
                )


async def send(job: Facts) -> None:
    """Be a node that sends messages for some agents, and stays until its stdin ends."""
    async with Mesh.open() as mesh:
        report(node=mesh.identity.node_id)
        desk = AgentSender(mesh, job)
        await desk.live(desk.send_all())


class Reader(MessagingAgent):
    """Deals with messages, with each once: of that it keeps a list, which it shares with others."""

    def __init__(self, mesh: MeshNode, job: Facts) -> None:
        super().__init__(mesh, job)
        self._known: set[tuple[str, str]] = set()

    async def read_all(self) -> None:
        """Deal with all messages for an agent and its roles, forever."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self.job["loops"]):
                group.create_task(self._read())

    async def _read(self) -> None:
        agent, roles, lease = self.job["agents"][0], self.job["roles"], self.job["lease"]
        async for message in self.mesh.messages.receive(agent, roles=roles, lease=lease):
            await self._deal_with(message)

    async def _deal_with(self, message: Message) -> None:
        """Write it down, unless someone has, and acknowledge it."""
        number = message.body["n"]
        self.written.add("handed", message.sender_agent, number)
        report(got=number)
        await self.halt_at(number)
        await asyncio.sleep(self.job["work"])
        self._known |= {(agent, number) for what, agent, number in self.written.new() if what == "done"}
        is_new = (message.sender_agent, str(number)) not in self._known
        self.written.add("done" if is_new else "again", message.sender_agent, number)
        try:
            await self.mesh.messages.ack(message, durable=self.job["durable"])
        except NotHolder:
            report(refused=number)
        else:
            self.written.add("acked", message.sender_agent, number)
            report(acked=number)


async def receive(job: Facts) -> None:
    """Be a node that receives, until it is stopped."""
    async with Mesh.open() as mesh:
        report(node=mesh.identity.node_id)
        reader = Reader(mesh, job)
        await reader.live(reader.read_all())


async def main(job: Facts) -> None:
    """Do the job. As Ctrl-C does, SIGTERM ends it in good order."""
    task = asyncio.current_task()
    assert task is not None
    if job["patience"]:
        consumer._CLAIM_TIMEOUT_S = job["patience"]  # type: ignore[misc]
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await {"send": send, "receive": receive}[job["verb"]](job)


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    with suppress(BrokenPipeError, asyncio.CancelledError):
        try:
            asyncio.run(main(json.loads(sys.argv[1])))
        except KeyboardInterrupt:
            sys.exit(130)
