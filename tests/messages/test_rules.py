"""Senders and consumers that do anything in any order: what they are given is what the rules say."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
)

from tests.support.messages.message_oracle import Oracle, OracleMessage
from tests.support.messages.messaging import PATIENCE_S, NodeGroup, change, come_due, crowd_on, lapse
from tests.support.running import lengths
from tests.support.running.walks import walk
from tools.homes import FILE, MEMORY, HomeCase
from vox_mesh import Message
from vox_mesh.errors import NotHolder, NotKnown
from vox_mesh.model.messages.records import MessageState
from vox_mesh.node import MeshNode

T = TypeVar("T")

_NODES = ("one", "two")
_LONG_S = 3_600.0
_MOST_OF_PAIR = 7  # more than these are not looked through for what is claimed
_LISTED = 10_000

any_of = st.integers(0, 2**16)
receivers = st.sampled_from(["z", "role:r"])


class MessageWalk(RuleBasedStateMachine):
    """Two nodes, a few senders and two inboxes; after each step the database shows what the oracle says."""

    case: ClassVar[HomeCase]
    folder: ClassVar[Path]
    walks: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._oracle = Oracle()
        self._held: list[tuple[str, Message, OracleMessage]] = []
        self._over: list[tuple[str, Message]] = []

    def _run(self, step: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(PATIENCE_S):
                ended = await step
                await self._compare()
                return ended

        return self._runner.run(bounded())

    @initialize()
    def begin(self) -> None:
        """Open the mesh."""
        walk = type(self)
        walk.walks += 1
        self._context: AbstractAsyncContextManager[NodeGroup] = crowd_on(
            walk.case, walk.folder / str(walk.walks), None
        )

        async def begin() -> None:
            self._crowd = await self._context.__aenter__()
            self._nodes = {name: await self._crowd.node(name) for name in _NODES}

        self._runner.run(begin())

    def teardown(self) -> None:
        """Leave it, whatever happened."""
        try:
            self._runner.run(self._context.__aexit__(None, None, None))
        finally:
            self._runner.close()

    # --- what is compared ---------------------------------------------------------------------------

    async def _compare(self) -> None:
        """What lies in the database is what the oracle says, and what is free is so."""
        listed = await self._nodes["one"].messages.queries.listed(limit=_LISTED)
        seen = {each.message_uuid: (each.state, each.delivery_attempts) for each in listed}
        assert seen == self._oracle.seen()
        over = [each for each in self._held if not each[2].is_held]
        self._held = [each for each in self._held if each[2].is_held]
        self._over += [(name, message) for name, message, letter in over if letter.is_open]

    def _chosen(self, number: int) -> tuple[MeshNode, Message, OracleMessage]:
        name, message, letter = self._held[number % len(self._held)]
        return self._nodes[name], message, letter

    def _node(self, number: int) -> tuple[str, MeshNode]:
        name = _NODES[number % len(_NODES)]
        return name, self._nodes[name]

    # --- the steps ------------------------------------------------------------------------------------

    @rule(
        number=any_of,
        sender=st.sampled_from("abc"),
        to=receivers,
        priority=st.integers(0, 3),
        attempts=st.integers(1, 3),
    )
    def send(self, number: int, sender: str, to: str, priority: int, attempts: int) -> None:
        """Send a message, from either node."""
        if len(self._oracle.open_of((sender, to))) > _MOST_OF_PAIR:
            return
        _, node = self._node(number)

        async def step() -> None:
            self._oracle.send(
                await node.messages.send(to, number, sender=sender, priority=priority, max_attempts=attempts)
            )

        self._run(step())

    @rule(number=any_of, has_role=st.booleans(), limit=st.integers(1, 6))
    def claim(self, number: int, has_role: bool, limit: int) -> None:
        """Claim what there is, as z, with or without the role."""
        name, node = self._node(number)
        assert node.incarnation is not None
        names = ["z", "role:r"] if has_role else ["z"]
        expected = self._oracle.claim(names, limit, (name, node.incarnation))

        async def step() -> None:
            roles = ["r"] if has_role else []
            claimed = await node.messages.poll_inbox_from_db("z", roles=roles, limit=limit)
            assert [each.message_uuid for each in claimed] == [
                letter.message.message_uuid for letter in expected
            ]
            for message, letter in zip(claimed, expected, strict=True):
                letter.claim = message.claim_owner
                assert message.delivery_attempts in (letter.attempts, letter.attempts + 1)
                self._held.append((name, message, letter))

        self._run(step())

    @precondition(lambda self: self._held)
    @rule(number=any_of)
    def ack(self, number: int) -> None:
        """Acknowledge what is claimed; said twice, it is the same."""
        node, message, letter = self._chosen(number)
        self._oracle.ack(letter)
        self._run(node.messages.ack(message))
        self._run(node.messages.ack(message))

    @precondition(lambda self: self._held)
    @rule(number=any_of, waits=st.booleans())
    def nack(self, number: int, waits: bool) -> None:
        """Give back what is claimed, for later or for now; said twice, it is the same."""
        node, message, letter = self._chosen(number)
        self._oracle.nack(letter, message.delivery_attempts, waits=waits)
        self._run(node.messages.nack(message, retry_in=_LONG_S if waits else 0))
        self._run(node.messages.nack(message, retry_in=_LONG_S if waits else 0))

    @precondition(lambda self: self._held)
    @rule(number=any_of)
    def renew(self, number: int) -> None:
        """Renew a lease, which changes nothing that others see."""
        node, message, _ = self._chosen(number)
        self._run(node.messages.renew(message))

    @precondition(lambda self: self._held)
    @rule(number=any_of)
    def lapse(self, number: int) -> None:
        """Have the lease of a claim be over."""
        node, message, _ = self._chosen(number)
        had = self._oracle.lapse(message.claim_owner)
        self._run(lapse(node, *(letter.message for letter in had)))

    @precondition(lambda self: self._over)
    @rule(number=any_of)
    def use_what_is_over(self, number: int) -> None:
        """Say something of a message whose lease is over, or that was given back with one before it."""
        name, message = self._over[number % len(self._over)]
        node = self._nodes[name]

        async def step() -> None:
            with pytest.raises(NotHolder):
                await node.messages.ack(message)
            with pytest.raises(NotHolder):
                await node.messages.renew(message)

        self._run(step())

    @rule(number=any_of)
    def come_due(self, number: int) -> None:
        """Have the time come of all that was given back."""
        self._oracle.come_due()
        self._run(come_due(self._node(number)[1]))

    @precondition(lambda self: any(letter.is_open for letter in self._oracle.letters))
    @rule(number=any_of)
    def expire(self, number: int) -> None:
        """Have a message's time pass."""
        letters = [letter for letter in self._oracle.letters if letter.is_open]
        letter = letters[number % len(letters)]
        letter.has_expired = True
        self._run(change(self._nodes["one"], [letter.message], expires_ms=1))

    @rule(number=any_of)
    def keep(self, number: int) -> None:
        """Have a keeper keep order."""
        self._oracle.keep()
        self._run(self._node(number)[1]._message_maintenance.run_once())

    @precondition(lambda self: self._oracle.letters)
    @rule(number=any_of)
    def retry(self, number: int) -> None:
        """Send a message again, which only a dead letter can be."""
        dead = [letter for letter in self._oracle.letters if letter.state == MessageState.DEAD]
        letters = dead or self._oracle.letters
        letter = letters[number % len(letters)]
        _, node = self._node(number)

        async def step() -> None:
            if letter.state == MessageState.DEAD:
                self._oracle.retry(letter)
                await node.messages.queries.retry(letter.message.message_uuid)
            else:
                with pytest.raises(NotKnown):
                    await node.messages.queries.retry(letter.message.message_uuid)

        self._run(step())

    @rule(number=any_of)
    def kill(self, number: int) -> None:
        """Have a node die, and begin again: what it held is free for it, and for no one else."""
        name, node = self._node(number)
        self._held = [each for each in self._held if each[0] != name]
        self._over = [each for each in self._over if each[0] != name]

        async def step() -> None:
            node.messages.claims._handed_out.clear()  # killed, it gives nothing back
            await node.store.close()
            self._nodes[name] = await self._crowd.node(name)

        self._run(step())


def _walk(case: HomeCase, folder: Path, examples: int, steps: int) -> None:
    machine = type("Walk", (MessageWalk,), {"case": case, "folder": folder})
    walk(machine, examples, steps)


@pytest.mark.soak
def test_what_consumers_are_given_in_memory_is_what_the_rules_say(tmp_path: Path) -> None:
    _walk(MEMORY, tmp_path, lengths.MESSAGE_WALKS, 50)


@pytest.mark.soak
def test_what_consumers_are_given_of_a_file_is_what_the_rules_say(tmp_path: Path) -> None:
    _walk(FILE, tmp_path, max(4, lengths.MESSAGE_WALKS // 4), 40)
