"""Claims that are interrupted: the acks that were sent with them are not forgotten."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.messages.messaging import PATIENCE_S, found, settled
from tests.support.nodes.clocks import Clock
from tests.support.oplog.authoring import scene
from vox_mesh.nodes.clock import Dependencies


async def test_an_ack_that_was_sent_with_an_interrupted_claim_is_sent_again() -> None:
    # While no time passes, an ack lets no other task run, and so stays queued until the claim.
    still = Dependencies(monotonic=Clock())
    async with asyncio.timeout(PATIENCE_S), scene() as there, there.node(dependencies=still) as node:
        await node.run_once()
        await node.messages.send("z", 1, sender="a")
        (message,) = await node.messages.inbox("z")
        await settled(node)
        there.gate.hold()
        await node.messages.ack(message, queued=True)
        claiming = asyncio.create_task(node.messages.claims.claim(["z"], "claim", lease_s=60))
        await there.gate.arrival()
        assert not node.messages.claims.acks.take(), "the claim has taken it along"
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        there.gate.release()
        await node.messages.wait_for_acks()
        assert (await found(node, message)).state == "acked"
