"""Succession: who owns the mesh follows from signatures alone, whatever is done to the rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.oplog.chains import Said, key_named, signed_by
from tests.support.oplog.owners import FIRST, OwnedLog, heard, recovery_named, resolved
from tests.support.running.examples import few, many
from vox_mesh.errors import BadValue
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.recovery_key import SECRET_BYTES, RecoveryKey
from vox_mesh.model.oplog.succession import Succession, Successions, acts_to_keep
from vox_mesh.model.oplog.verification import ROUTE, TRANSFER

B, C, EVIL = "node-b", "node-c", "evil"


def route(log: OwnedLog, node_id: str, kind: str = "build", *, accepted: int = 1) -> LogEntry:
    """A signed act about a route."""
    reason = None if accepted else "not_the_owner"
    said = Said(ROUTE, {"kind": kind, "node": node_id}, is_signed=True, accepted=accepted, reason=reason)
    return log.write(node_id, said)[0]


def is_act(found: Succession, entry: LogEntry) -> bool:
    """Whether an owner signed an entry in its tenure."""
    return found.signer(entry) is not None


# --- which acts count -----------------------------------------------------------------------------


def test_each_owner_s_acts_count_in_its_own_time_only() -> None:
    log = OwnedLog()
    early, own = route(log, B, accepted=0), route(log, FIRST)
    step = log.transfer(B, log.initial, recovery_named("first").signing_key(log.owner_key or ""), acts=[own])
    late, new = route(log, FIRST), route(log, B)
    found = resolved(log.entries)
    assert (found.owner.node_id, found.owner.op_id) == (B, step.op_id)
    assert [is_act(found, each) for each in (own, new)] == [True, True]
    assert not is_act(found, late)
    assert not is_act(found, early._replace(accepted=1, reason=None))  # a refused one that was made accepted
    assert not is_act(found, new._replace(payload='{"kind":"*","node":"evil"}'))
    assert found.may_act(B, key_named(B).public)
    assert not found.may_act(FIRST, key_named(FIRST).public)


def test_an_owner_who_comes_back_did_not_own_the_time_between() -> None:
    log = OwnedLog()
    to_b = log.recover(B, log.initial)
    between = route(log, FIRST)
    log.recover(FIRST, to_b, "next", B)
    again = route(log, FIRST)
    found = resolved(log.entries)
    assert found.owner.node_id == FIRST
    assert (is_act(found, between), is_act(found, again)) == (False, True)


def test_the_owner_replaces_the_recovery_key_and_the_old_one_is_void() -> None:
    log = OwnedLog()
    own = route(log, FIRST)
    renewed = log.transfer(FIRST, log.initial, key_named(FIRST), recovery="second")
    found = resolved(log.entries)
    assert (found.owner, is_act(found, own)) == (found.initial, True)
    assert found.followed_by(log.recover(EVIL, renewed, "first")) is None
    assert found.followed_by(log.recover(B, renewed, "second")) is not None


def test_the_acts_in_force_are_kept_and_then_the_newest() -> None:
    log = OwnedLog()
    routes = [route(log, FIRST, kind) for kind in ("a", "b", "b", "b", "b")]
    assert acts_to_keep(routes) == sorted(each.hash for each in routes)
    assert acts_to_keep(routes, 3) == sorted(routes[index].hash for index in (0, 4, 3))
    assert acts_to_keep(routes, 1) == sorted(routes[index].hash for index in (0, 4))


# --- what is no step ------------------------------------------------------------------------------


def test_no_step_without_both_signatures_on_this_mesh_and_this_step() -> None:
    log, recovery = OwnedLog(), recovery_named("first").signing_key(key_named(FIRST).public)
    step = log.recover(B, log.initial)
    begun = heard([log.initial]).resolve()
    assert begun is not None
    assert begun.followed_by(step) is not None
    for proof in (key_named(EVIL), recovery_named("first").signing_key(key_named(EVIL).public)):
        assert begun.followed_by(log.transfer(EVIL, log.initial, proof)) is None
    assert begun.followed_by(log.transfer(B, log.initial, recovery, scope_id="other")) is None
    assert begun.followed_by(log.transfer(B, log.initial, recovery, accepted=0)) is not None  # not signed
    assert begun.followed_by(step._replace(signature=None)) is None
    assert begun.followed_by(signed_by(key_named(EVIL), step)) is None  # the new owner did not agree
    for old, new in (("node-b", "node-x"), ("[]", "[7]"), ('"node-b":1', '"node-b":0'), ('{"a', '{"A":0,"a')):
        changed = step._replace(payload=step.payload.replace(old, new))
        assert changed != step
        assert begun.followed_by(signed_by(key_named(B), changed)) is None
    other = OwnedLog("second")
    assert begun.followed_by(other.recover(B, other.initial, "second")) is None
    assert begun.followed_by(signed_by(key_named(B), step._replace(hlc=log.initial.hlc))) is None


def test_a_mesh_without_a_recovery_key_has_none_to_be_recovered_with() -> None:
    log = OwnedLog(recovery=None)
    assert resolved([log.initial, log.recover(B, log.initial)]).owner.node_id == FIRST


# --- several steps --------------------------------------------------------------------------------


@many
@given(st.lists(st.sampled_from(["recover", "transfer", "renew"]), max_size=5), st.randoms())
def test_nothing_but_removing_steps_changes_who_the_owner_is(plan: list[str], chance: object) -> None:
    log, step, owner, recovery = OwnedLog(), None, FIRST, "first"
    last = log.initial
    for number, way in enumerate(plan):
        to = owner if way == "renew" else f"node-{number}"
        proof = key_named(owner)
        if way == "recover":
            proof = recovery_named(recovery).signing_key(proof.public)
        recovery = f"recovery-{number}"
        step = log.transfer(to, last, proof, recovery=recovery)
        replayed = log.transfer(EVIL, last, key_named(EVIL))
        assert heard([*log.entries]).hear(replayed) is False
        last, owner = step, to
    entries = log.entries
    chance.shuffle(entries)  # type: ignore[attr-defined]
    found = resolved([each._replace(id=place) for place, each in enumerate(entries, 1)])
    assert (found.owner.node_id, found.links[-1], len(found.links)) == (owner, last.hash, len(plan) + 1)
    assert (found.rivals, found.key) == ((), key_named(owner).public)
    for key in found.keys:
        pinned = resolved(entries, key)
        assert pinned.links == found.links
    assert heard(entries).resolve(key_named(EVIL).public) is None


def test_an_old_step_does_not_come_back_after_a_later_one() -> None:
    log = OwnedLog()
    to_b = log.recover(B, log.initial)
    to_c = log.recover(C, to_b, "next", B)
    found = heard([*log.entries, to_b._replace(id=99)])
    assert found.hear(to_b) is False
    resolved_now = found.resolve()
    assert resolved_now is not None
    assert resolved_now.links[-1] == to_c.hash


def test_of_competing_steps_none_counts_unless_one_was_known_or_is_pinned() -> None:
    log = OwnedLog()
    shared, other = route(log, FIRST), route(log, FIRST, "test")
    key = recovery_named("first").signing_key(key_named(FIRST).public)
    to_b = log.transfer(B, log.initial, key, acts=[shared, other])
    to_evil = log.transfer(EVIL, log.initial, key, acts=[shared])
    acts = [route(log, name) for name in (FIRST, B, EVIL)]
    found = resolved(log.entries)
    assert (found.key, {*found.rivals}) == (None, {to_b.hash, to_evil.hash})
    assert [is_act(found, each) for each in (shared, other, *acts)] == [True, *[False] * 4]
    known = heard(log.entries).resolve(preferred=[to_b.hash])
    assert known is not None
    assert known.owner.node_id == B
    assert resolved(log.entries, key_named(B).public).owner.node_id == B
    assert resolved(log.entries, key_named(FIRST).public).key is None


def test_of_two_steps_of_one_new_owner_the_continued_and_then_the_later_counts() -> None:
    log = OwnedLog()
    first, second = log.recover(B, log.initial), log.recover(B, log.initial)
    assert resolved(log.entries).links[-1] == second.hash
    third = log.recover(C, first, "next", B)
    assert resolved(log.entries).links[-1] == third.hash


@few
@given(st.binary(max_size=40) | st.just(b'{"follows":7}') | st.just(b"null"))
def test_a_planted_step_that_can_t_be_read_is_none(payload: bytes) -> None:
    log = OwnedLog()
    step = log.recover(B, log.initial)._replace(payload=payload.decode("latin-1"), kind=TRANSFER)
    found = Successions("")
    found.hear_first(log.initial)
    assert found.hear(step) is False


# --- the recovery key -----------------------------------------------------------------------------


@many
@given(st.binary(min_size=SECRET_BYTES, max_size=SECRET_BYTES))
def test_a_recovery_key_can_be_written_down_and_read_again(secret: bytes) -> None:
    key = RecoveryKey(secret)
    for text in (key.text, key.text.upper(), key.text.replace("-", " "), key.text.replace("0", "O") + "\n"):
        assert RecoveryKey.parse(text).text == key.text
    assert secret.hex() not in repr(key)
    assert key.text not in repr(key)


@many
@given(st.integers(0, 31), st.sampled_from("0123456789abcdefghjkmnpqrstvwxyz"))
def test_a_mistyped_letter_of_a_recovery_key_is_found(place: int, letter: str) -> None:
    text = recovery_named("some").text
    letters = [index for index, each in enumerate(text) if each != "-"][4:]
    typed = text[: letters[place]] + letter + text[letters[place] + 1 :]
    if typed != text:
        with pytest.raises(BadValue, match="checksum"):
            RecoveryKey.parse(typed)


@pytest.mark.parametrize("text", ["", "voxr", "voxr-0000", "voxr-" + "u" * 32, "ed25519:" + "0" * 64])
def test_a_text_that_is_no_recovery_key_is_refused(text: str) -> None:
    with pytest.raises(BadValue, match="recovery key can't be read"):
        RecoveryKey.parse(text)
