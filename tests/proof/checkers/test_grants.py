"""The checks of grants find what was done without one, by that of another, and after a revocation."""

from __future__ import annotations

from typing import Any, Final

import pytest

from proof.checkers.grants import GRANT_CHECKS
from tests.proof.checkers.story import Story, faults
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.hlc import Hlc
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.base.ulid import UlidSource
from vox_mesh.model.grants.grant import Grant, Terms
from vox_mesh.model.grants.history import AdmittedAgent
from vox_mesh.model.grants.templates import capabilities_of

_SCOPE: Final = "scope"
_AT_MS: Final = 1_700_000_000_000
_IDS: Final = UlidSource(lambda: _AT_MS, lambda bits: 7)
_OWNER, _ANN = SigningKey(bytes(32)), SigningKey(bytes([1] * 32))
_LINES: Final = ["message.send to bob", "lock.acquire on a:*", "job.take", "conflict.resolve"]
_TERMS: Final = Terms(capabilities_of(_LINES), 0, _AT_MS + 10, delegations=1)
_GRANT: Final = Grant(_IDS(), _OWNER.public, "ann", _ANN.public, None, _TERMS)
_PART: Final = Grant(_IDS(), _ANN.public, "cid", None, _GRANT.grant_id, _TERMS._replace(delegations=0))


def _entry(kind: str, payload: str, op_id: str = "", **more: Any) -> dict[str, Any]:
    entry = {"op_id": op_id or _IDS(), "kind": kind, "payload": payload, "hlc": str(Hlc(_AT_MS, 0, "ada"))}
    return {"node_id": "ada", "seq": 1, "accepted": 1, **entry, **more}


_REVOKE: Final = _entry("Revoke", canonical({"grant": _GRANT.grant_id}))
_BEGIN: Final = (
    _entry("AdmitAgent", AdmittedAgent("ann", _ANN.public).payload),
    _entry("AdmitAgent", AdmittedAgent("cid", None).payload),
    _entry("Grant", _GRANT.sign(_OWNER, _SCOPE).payload, _GRANT.grant_id),
    _entry("Delegate", _PART.sign(_ANN, _SCOPE).payload, _PART.grant_id),
)
_BEFORE, _AFTER = 45, 55
"""Before and after the entry that revokes the grant of ann, and with it the part of cid."""


def _resolve(log_id: int, agent: str, grant: Grant | None, kind: str = "ResolveConflict") -> dict[str, Any]:
    return _entry(kind, "{}", id=log_id, agent=agent, grant=None if grant is None else grant.grant_id)


def _story(*entries: dict[str, Any], **deeds: dict[str, Any]) -> Story:
    story = Story()
    story.final("admitted_agents", scope_id=_SCOPE, agent_id="ann")
    story.final("jobs", job_id="job", kind="kind")
    right = _resolve(_BEFORE - 1, "ann", _GRANT)
    for number, entry in enumerate((*_BEGIN, _REVOKE, right, *entries), 1):
        story.final("agent_oplog", **{"id": 10 * number, **entry})
    for table, row in deeds.items():
        story.final(table, **{"at_ms": _AT_MS, "log_id": _BEFORE, **row})
    return story


def _send(sender: str, receiver: str, **more: Any) -> Story:
    return _story(proof_sends={"sender_agent": sender, "receiver_agent": receiver, **more})


def _acquire(agent: str, key: str, **more: Any) -> Story:
    return _story(proof_acquisitions={"holder_agent": agent, "lock_key": key, **more})


def _take(agent: str, **more: Any) -> Story:
    row = {"job_id": "job", "agent_id": agent, "grant_id": _PART.grant_id, **more}
    return _story(proof_takes=row)


@pytest.mark.parametrize(
    ("story", "without", "revoked"),
    [
        (_story(), "", ""),
        (_story(_resolve(_BEFORE, "cid", _PART)), "", ""),
        (_story(_resolve(_AFTER, "dan", None)), "", ""),
        (_story(_resolve(_BEFORE, "ann", None)), "ann had no grant for it", ""),
        (_story(_resolve(_BEFORE, "cid", _GRANT)), "is none of cid", ""),
        (_story(_resolve(_BEFORE, "ann", _GRANT, "DrainNode")), "does not allow `node.drain`", ""),
        (_story(_resolve(_AFTER, "ann", _GRANT)), "was not in force", "which had been revoked"),
        (_story(_resolve(_AFTER, "cid", _PART)), "was not in force", "which had been revoked"),
        (_send("ann", "bob"), "", ""),
        (_send("ann", "bob", log_id=5), "", ""),
        (_send("ann", "bob", log_id=25), "no grant allowed `message.send to bob`", ""),
        (_send("ann", "bob", at_ms=_AT_MS + 10), "no grant allowed `message.send to bob`", ""),
        (_send("ann", "eve"), "no grant allowed `message.send to eve`", ""),
        (_send("cid", "bob", log_id=_AFTER), "", "had been revoked"),
        (_acquire("ann", "a:1"), "", ""),
        (_acquire("ann", "b:1"), "no grant allowed `lock.acquire on b:1`", ""),
        (_acquire("ann", "a:1", log_id=_AFTER), "", "had been revoked"),
        (_take("cid"), "", ""),
        (_take("cid", log_id=_AFTER), "", "was taken by grant"),
        (_story(grants={"grant_id": _PART.grant_id, "agent_id": "cid"}), "", "and is in force"),
    ],
)
def test_what_was_done_without_a_grant_or_after_its_revocation_is_found(
    story: Story, without: str, revoked: str
) -> None:
    for name, fault in (("nothing-without-grant", without), ("revoked-at-commit", revoked)):
        found = " ".join(faults(GRANT_CHECKS, name, story))
        assert fault in found
        assert bool(found) is bool(fault)
