"""Claims that are interrupted: the acks that were sent with them are not forgotten."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.messages.messaging import PATIENCE_S, change, found, next_of, settled
from tests.support.nodes.clocks import Clock
from tests.support.oplog.authoring import scene
from vox_mesh.errors import NotHolder
from vox_mesh.nodes.clock import Dependencies


async def test_an_ack_that_was_sent_with_an_interrupted_claim_is_sent_again() -> None:
    # While no time passes, an ack lets no other task run, and so stays queued until the claim.
    still = Dependencies(monotonic=Clock())
    async with asyncio.timeout(PATIENCE_S), scene() as there, there.node(dependencies=still) as node:
        await node.run_once()
        await node.messages.send("z", 1, sender="a")
        receiving = node.messages.receive("z")
        message = await next_of(receiving)
        await settled(node)
        there.gate.hold()
        await node.messages.ack(message)
        claiming = asyncio.create_task(node.messages.claims.claim(["z"], "claim", lease_s=60))
        await there.gate.arrival()
        assert not node.messages.claims.acks.take(), "the claim has taken it along"
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        there.gate.release()
        assert await node.messages.wait_for_acks()
        assert (await found(node, message)).state == "acked"
        await receiving.aclose()


async def test_an_ack_that_failed_is_raised_by_its_loop() -> None:
    async with asyncio.timeout(PATIENCE_S), scene() as there, there.node() as node:
        await node.run_once()
        sent = [await node.messages.send("z", number, sender="a") for number in range(2)]
        receiving = node.messages.receive("z")
        message = await next_of(receiving)
        await change(node, sent[:1], claim_owner="another", claim_until_ms=2**52)
        await node.messages.ack(message)
        assert not await node.messages.wait_for_acks()
        with pytest.raises(NotHolder):
            await next_of(receiving)
