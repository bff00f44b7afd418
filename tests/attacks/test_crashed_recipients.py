"""Recipients that crash: another one of the same role gets what they had not acknowledged."""

from __future__ import annotations

from contextlib import aclosing

from tests.support.messages.messaging import next_of
from vox_mesh.testing.harness import MeshHarness


async def test_a_message_of_a_crashed_recipient_goes_to_another_node_when_its_claim_ends() -> None:
    async with MeshHarness() as harness:
        crashing, other = await harness.node("a"), await harness.node("b")
        await other.messages.send("role:builder", 1, sender="ann")
        async with aclosing(crashing.messages.receive("ben", roles=["builder"], lease=5)) as messages:
            await next_of(messages)
            await crashing.messages.lease_inboxes()  # its last sign of life
            assert crashing.messages._leases.until("ben") is not None, "the only recipient leases an inbox"
            await harness.kill("a")
        await harness.clock.advance("6s")
        (again,) = await other.messages.poll_inbox_from_db("cas", roles=["builder"])
        assert (again.body, again.delivery_attempts) == (1, 2)
