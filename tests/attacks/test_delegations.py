"""Agents that fill the history of grants with delegations, which the log keeps."""

from __future__ import annotations

from typing import Final

import pytest

from vox_mesh.errors import Refused
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.grants.grant import Grant
from vox_mesh.node import MeshNode
from vox_mesh.oplog.grants import grants

ANN: Final = SigningKey(b"a" * 32)
LINES: Final = ["message.send to bob"]


async def _parent(owner: MeshNode) -> Grant:
    """A grant of an agent, which may be delegated on and on."""
    await owner.grants.admit("ann", ANN.public)
    return await owner.grants.issue("ann", LINES, delegations=5)


async def test_no_delegation_is_recorded_that_has_ended_or_is_about_to(owner: MeshNode) -> None:
    parent = await _parent(owner)
    for lasts in ("1ms", "9s"):
        with pytest.raises(Refused, match="delegation_too_short"):
            await owner.grants.delegate(parent.grant_id, "ann", LINES, key=ANN, lasts=lasts)
    assert (await owner.grants.history()).records[-1].grant == parent
    await owner.grants.delegate(parent.grant_id, "ann", LINES, key=ANN, lasts="1m")


async def test_delegations_of_an_agent_are_few_also_if_they_have_ended(
    owner: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grants, "MIN_DELEGATION_S", -1)
    monkeypatch.setattr(grants, "MAX_DELEGATIONS_OF_AGENT", 4)
    parents = [await _parent(owner), await _parent(owner)]
    for parent in parents:
        child = await owner.grants.delegate(parent.grant_id, "ann", LINES, key=ANN, delegations=1)
        await owner.grants.delegate(child.grant_id, "ann", LINES, key=ANN, lasts="1ms")
    for parent in parents:
        with pytest.raises(Refused, match="too_many_delegations"):
            await owner.grants.delegate(parent.grant_id, "ann", LINES, key=ANN)
    monkeypatch.setattr(grants, "_KEPT_MS", -1_000)  # a day later
    await owner.grants.issue("ann", LINES)
    await owner.grants.delegate(parents[0].grant_id, "ann", LINES, key=ANN)


async def test_delegations_that_have_ended_cost_nothing_to_read(
    owner: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grants, "MIN_DELEGATION_S", -1)
    parent = await _parent(owner)
    ended = await owner.grants.delegate(parent.grant_id, "ann", LINES, key=ANN, lasts="1ms")
    lasting = await owner.grants.delegate(parent.grant_id, "ann", LINES, key=ANN, lasts="1h")
    history = await owner.grants.history()
    end_ms = ended.terms.until_ms
    assert end_ms is not None

    def found(agent: str | None, time_ms: int) -> list[Grant]:
        return [each.grant for each in history.in_force(time_ms, agent)]

    for agent in ("ann", None):
        assert found(agent, end_ms - 1) == [parent, ended, lasting]
        assert found(agent, end_ms) == [parent, lasting]
        assert [*history._unended["ann"]] == [parent.grant_id, lasting.grant_id]
    assert found("bob", end_ms) == []
    await owner.grants.revoke(parent.grant_id)
    history = await owner.grants.history()
    assert found("ann", end_ms) == found("ann", end_ms - 1) == []
    assert not history._unended["ann"]
