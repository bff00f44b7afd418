"""Verification: a log of any shape that no one changed is whole, and any change of one is found."""

from __future__ import annotations

import math
from typing import Any, Final

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.oplog.chains import Log, Said, key_named, problems, rechained, signed_by, verified
from tests.support.running.examples import exactly, few, many
from vox_mesh.model.oplog.chain import ANCHOR, NO_HASH, SEAL, LogEntry, signed_text
from vox_mesh.model.oplog.log_check import LogCheck
from vox_mesh.model.oplog.verification import DESIGNATE, OWNER_ONLY, REKEY, ROUTE, ChainWitness, Key

OWNER: Final = "node-a"
NODES: Final = (OWNER, "node-a/cli", "node-b", "node.c")
GUARD: Final = "z"
"""The node whose anchor comes last, and whose chain does in every order."""

payloads = st.sampled_from([{}, {"n": 1e17}, {"\u20ac": [None, -0.5], "\U0001f600": "text"}, 7])
verdicts = st.sampled_from([(1, None, None), (1, "waits", '{"n":1}'), (0, "failed", None), (0, "", None)])
depended_on = st.sampled_from([(), ("01KCA0000000000000000000AA",)])
ops = st.tuples(st.sampled_from(["note", "n\u00f6te"]), payloads, depended_on, verdicts, st.booleans()).map(
    lambda said: Said(*said[:3], *said[3], is_signed=said[4])
)
requests = st.tuples(
    st.sampled_from(NODES), st.lists(ops, min_size=1, max_size=4), st.sampled_from(["", "", "seal", "anchor"])
)


def log_of(plan: list[tuple[str, list[Said], str]]) -> Log:
    """The log that these requests make."""
    log = Log(OWNER)
    for node_id, said, also in plan:
        if also == "anchor":
            log.anchor(node_id)
        first = (log.sealing(node_id),) if also == "seal" else ()
        log.write(node_id, *first, *said)
    return log


def sealed_and_anchored(log: Log) -> Log:
    """The log with all its chains sealed, and where they end recorded by one more that is sealed too."""
    for node_id in log.names:
        log.seal(node_id)
    log.anchor(GUARD)
    log.seal(GUARD)
    return log


logs = st.lists(requests, min_size=1, max_size=5).map(lambda plan: sealed_and_anchored(log_of(plan)))


def small_log() -> Log:
    """One of each: a refused op, an answer, an owner's op, one that depends on others, seals and anchors."""
    log = Log(OWNER)
    log.write(OWNER, Said("note", {"n": 1}), Said("note", {}, accepted=0, reason="failed"))
    log.write("node-b", Said("note", {}, result='{"n":1}'), Said("note", [1.5], deps=(log.entries[0].op_id,)))
    log.write(OWNER, log.sealing(OWNER), Said(DESIGNATE, {"node": "node-b"}, is_signed=True))
    log.anchor("node-b")
    return sealed_and_anchored(log)


def found(log: Log, entries: list[LogEntry]) -> list[str]:
    return problems(entries, log.keys, log.owner_key)


# --- logs that no one changed ---------------------------------------------------------------------


@few
@given(st.lists(requests, max_size=8))
def test_a_log_that_no_one_changed_is_whole_whatever_its_shape(plan: list[Any]) -> None:
    log = log_of(plan)
    assert found(log, log.entries) == []


@few
@given(logs)
def test_a_report_says_how_far_a_chain_is_sealed_and_anchored(log: Log) -> None:
    reports = verified(log.entries, log.keys, log.owner_key)
    assert [report.node_id for report in reports] == log.names
    for report in reports:
        length = len(log.chain(report.node_id))
        assert (report.entries, report.sealed_to) == (length, length - 1)
        assert (report.problem, report.seq, report.op_id) == (None, None, None)
        if report.node_id != GUARD:
            assert report.anchored_to == length


# --- one field of one entry -----------------------------------------------------------------------

anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.integers(),
    st.floats(),
    st.sampled_from(["", "0", "1", "[]", "{}", "null", NO_HASH, SEAL, ANCHOR, *OWNER_ONLY, *NODES, "\ud800"]),
    st.text(max_size=8),
    st.binary(max_size=8),
)


def is_unseen(entry: LogEntry, field: str, value: Any, log: Log) -> bool:
    """What nothing vouches for: where the last entry of a chain was committed. The next seal does."""
    chain = log.chain(entry.node_id)
    if field != "id" or entry != chain[-1] or type(value) is not int:
        return False
    return len(chain) == 1 or value > chain[-2].id


@many
@given(logs, st.data())
def test_any_change_of_a_single_field_is_found(log: Log, data: st.DataObject) -> None:
    entries = log.entries
    index = data.draw(st.integers(0, len(entries) - 1))
    field = data.draw(st.sampled_from(LogEntry._fields))
    old = getattr(entries[index], field)
    elsewhere = st.sampled_from([getattr(entry, field) for entry in entries])
    value: Any = data.draw(anything | elsewhere | st.sampled_from(like(old)))
    assume(exactly(value) != exactly(old))
    assume(not is_unseen(entries[index], field, value, log))
    assume(field != "node_id" or not isinstance(value, list | dict))  # no database or export has such a name
    entries[index] = entries[index]._replace(**{field: value})
    assert found(log, entries)


def like(old: Any) -> list[Any]:
    """Other values that are nearly the same."""
    values: list[Any]
    if isinstance(old, str):
        values = [old + " ", old[:-1], old.upper(), old.encode(), old + "\x00", [old], None]
    elif isinstance(old, int):
        values = [old + 1, old - 1, -old, float(old), str(old), old == 1, old + 2**53, old + 2**64, None]
    else:
        values = ["", 0, False, math.nan, math.inf, [], {}]
    return [value for value in values if exactly(value) != exactly(old)]


@pytest.mark.parametrize("field", LogEntry._fields)
def test_this_field_of_every_entry_is_vouched_for(field: str) -> None:
    log = small_log()
    for index, entry in enumerate(log.entries):
        for value in like(getattr(entry, field)):
            if is_unseen(entry, field, value, log):
                continue
            if field == "node_id" and type(value) is list:
                continue  # no column holds one, and an export with one is not read
            entries = log.entries
            entries[index] = entry._replace(**{field: value})
            assert found(log, entries), (index, value)


@pytest.mark.parametrize("field", ["kind", "hlc", "causal_deps", "payload", "repository_id", "prev", "hash"])
def test_the_entry_that_was_changed_is_named(field: str) -> None:
    log = small_log()
    for index, entry in enumerate(log.entries):
        entries = log.entries
        entries[index] = entry._replace(**{field: getattr(entry, field) + "x"})
        broken = [report for report in verified(entries, log.keys, log.owner_key) if report.problem]
        assert [(each.node_id, each.seq, each.op_id) for each in broken] == [
            (entry.node_id, entry.seq, entry.op_id)
        ]


def test_a_verdict_that_no_seal_vouches_for_yet_is_not_seen_and_is_after_the_next() -> None:
    log = Log(OWNER)
    log.write(OWNER, Said("note", {}))
    log.seal(OWNER)
    log.write(OWNER, Said("note", {}, accepted=0, reason="failed"))
    changed = [entry._replace(accepted=1, reason=None) for entry in log.entries[2:]]
    assert found(log, [*log.entries[:2], *changed]) == []
    log.seal(OWNER)
    assert found(log, [*log.entries[:2], *changed, log.entries[3]]) == [
        f"{OWNER} 4: the verdicts since the last seal (up to entry 3) were changed"
    ]


# --- rows that were taken away, added or put elsewhere --------------------------------------------


@few
@given(logs, st.data())
def test_a_deleted_entry_is_found(log: Log, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(log.entries) - 2))  # no anchor knows of the guard's last
    assert found(log, log.entries[:index] + log.entries[index + 1 :])


@few
@given(logs, st.data())
def test_a_cut_tail_is_found_after_an_anchor(log: Log, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(log.names[:-1]))
    left = data.draw(st.integers(0, len(log.chain(name)) - 1))
    kept = [entry for entry in log.entries if entry.node_id != name or entry.seq <= left]
    (problem,) = found(log, kept)
    assert "it ends here, but anchor" in problem


def test_a_tail_that_no_anchor_knows_of_ends_where_a_request_ended_or_is_found() -> None:
    log = Log(OWNER)
    log.write(OWNER, Said("note", {}))
    log.write(OWNER, Said("note", {}), Said("note", {}))
    assert found(log, log.entries[:1]) == []
    assert found(log, log.entries[:2]) == [
        f"{OWNER} 2: it ends with an entry that is not signed: what followed was cut off"
    ]


@few
@given(logs, st.data())
def test_entries_that_changed_places_are_found(log: Log, data: st.DataObject) -> None:
    entries = log.entries
    places = st.integers(0, len(entries) - 1)
    one, other = data.draw(places), data.draw(places)
    assume(one != other)
    entries[one], entries[other] = entries[other], entries[one]
    assert found(log, entries)
    # Also when each takes the other's number, link and place.
    for index, left in ((one, log.entries[one]), (other, log.entries[other])):
        entries[index] = entries[index]._replace(id=left.id, seq=left.seq, prev=left.prev)
    assert found(log, entries)


@few
@given(logs, st.data())
def test_an_entry_that_comes_twice_is_found(log: Log, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(log.entries) - 1))
    where = data.draw(st.integers(0, len(log.entries)))
    assert found(log, [*log.entries[:where], log.entries[index], *log.entries[where:]])


def test_a_chain_that_comes_twice_is_found() -> None:
    log = small_log()
    first = log.chain(log.names[0])
    assert found(log, [*log.entries, *first]) == [f"{OWNER} 1: its chain comes twice"]


def test_an_added_entry_that_fits_is_found_by_its_missing_signature() -> None:
    log = small_log()
    last = log.chain(GUARD)[-1]
    added = last._replace(id=99, seq=last.seq + 1, prev=last.hash, kind="note", payload="{}", op_id="0" * 26)
    added = added._replace(hlc=f"9{added.hlc[1:]}")
    assert found(log, [*log.entries, signed_by(key_named(GUARD), added)]) == []
    assert "signature is not one" in found(log, [*log.entries, signed_by(key_named("thief"), added)])[0]
    unsigned = signed_by(key_named("thief"), added)._replace(signature=None)
    assert "not signed" in found(log, [*log.entries, unsigned])[0]


# --- chains that were written again ----------------------------------------------------------------


@few
@given(logs, st.data())
def test_a_chain_written_again_with_another_key_is_found(log: Log, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(log.names))
    thief = key_named("thief")
    forged = rechained(log.chain(name), thief)
    others = [entry for entry in log.entries if entry.node_id != name]
    assert found(log, others + forged)
    # With its key put in the place of the true one, the anchors still know the chain.
    keys = [Key(name, 1, thief.public) if key.node_id == name else key for key in log.keys]
    if name != GUARD:
        changed = [entry._replace(reason="changed") if entry.kind != SEAL else entry for entry in forged]
        changed = rechained([changed[0]._replace(payload='"changed"'), *changed[1:]], thief)
        assert problems(others + changed, keys, log.owner_key)
    # Nor does it help to say that the thief's key came later: the owner never accepted it.
    later = [*log.keys, Key(name, 2, thief.public)]
    assert problems(log.entries, later, log.owner_key)


def rewritten(log: Log, name: str) -> list[LogEntry]:
    """The chain with another first payload, by its own author, without any fault in itself."""
    chain = log.chain(name)
    return rechained([chain[0]._replace(payload='"other"'), *chain[1:]], key_named(name.partition("/")[0]))


def test_a_chain_that_its_own_author_wrote_again_is_found_after_an_anchor() -> None:
    log = small_log()
    others = [entry for entry in log.entries if entry.node_id != OWNER]
    assert found(log, rewritten(log, OWNER) + others)
    unanchored = [entry for entry in others if entry.kind != ANCHOR]
    unanchored = rechained([each for each in unanchored if each.node_id == "node-b"], key_named("node-b"))
    keys = [key for key in log.keys if key.node_id in (OWNER, "node-b")]
    assert problems(rewritten(log, OWNER) + unanchored, keys, log.owner_key) == []


@pytest.mark.parametrize("is_heard_first", [True, False])
def test_one_that_writes_a_chain_again_cannot_anchor_it_again(is_heard_first: bool) -> None:
    log = small_log()
    forged = rewritten(log, "node-b")
    heads = {"node-b": [forged[-1].seq, forged[-1].hash]}
    accomplice = Log(OWNER)
    accomplice.write("0" if is_heard_first else "zz", Said(ANCHOR, {"heads": heads}))
    entries = [entry for entry in log.entries if entry.node_id != "node-b"] + forged + accomplice.entries
    entries.sort(key=lambda entry: entry.node_id)
    assert problems(entries, [*log.keys, *accomplice.keys], log.owner_key)


# --- chains of which nothing is left --------------------------------------------------------------


def test_a_chain_of_which_nothing_is_left_is_reported() -> None:
    log = small_log()
    left = [entry for entry in log.entries if entry.node_id != "node-b"]
    assert ["it ends here, but anchor" in problem for problem in found(log, left)] == [True]
    keyless = [key for key in log.keys if key.node_id != "node-b"]
    assert len(problems(left, keyless, log.owner_key)) == 1
    witness = ChainWitness(None, log.keys)
    reports = LogCheck(witness).finish()
    assert [(each.node_id, each.problem) for each in reports] == [
        (name, "its entries are gone, but its key is known") for name in log.names
    ]
    assert [each.node_id for each in LogCheck(witness).finish("node-b")] == ["node-b"]
    assert LogCheck(witness).finish("unknown") == []


def test_an_empty_log_is_whole() -> None:
    assert verified([], []) == []


def test_a_chain_without_a_key_is_found() -> None:
    log = small_log()
    keys = [key for key in log.keys if key.node_id != "node-b"]
    assert problems(log.entries, keys, log.owner_key) == ["node-b 1: no key is known for it"]


# --- the owner ------------------------------------------------------------------------------------


def rekeyed(*, by: str, accepted: int = 1) -> Log:
    """A log in which someone says that node-b has another key from its third entry on."""
    log = Log(OWNER)
    log.write(OWNER, Said("note", {}))
    log.write("node-b", Said("note", {}), Said("note", {}))
    new = key_named("node-b, new")
    said = {"node": "node-b", "key": new.public, "from": {"node-b": 3}}
    reason = None if accepted else "not_the_owner"
    log.write(by, Said(REKEY, said, accepted=accepted, reason=reason, is_signed=True))
    log.rekey("node-b", new)
    log.write("node-b", Said("note", {}))
    return log


def test_a_new_key_that_the_owner_accepted_is_in_force_from_there_on() -> None:
    log = rekeyed(by=OWNER)
    assert found(log, log.entries) == []
    thief = rechained(log.chain("node-b"), key_named("node-b, new"))
    assert found(log, log.chain(OWNER) + thief) == ["node-b 2: its signature is not one of its author's key"]


def test_a_new_key_does_not_vouch_for_what_was_before_it() -> None:
    log = rekeyed(by=OWNER)
    first, second, third = log.chain("node-b")
    again = rechained(
        [first._replace(payload="1"), second._replace(signature=None), third], key_named("node-b, new")
    )
    assert found(log, log.chain(OWNER) + again) == [
        "node-b 3: its key is a new one, and what was before it was not signed with the old one"
    ]


@pytest.mark.parametrize(("by", "accepted"), [("node-c", 1), ("node-b", 1), (OWNER, 0)])
def test_a_new_key_that_the_owner_did_not_accept_is_found(by: str, accepted: int) -> None:
    log = rekeyed(by=by, accepted=accepted)
    assert any("node-b" in problem for problem in found(log, log.entries))


@pytest.mark.parametrize("kind", sorted(OWNER_ONLY))
def test_what_only_the_owner_may_say_is_found_when_it_is_anothers(kind: str) -> None:
    log = Log(OWNER)
    log.write(OWNER, Said("note", {}))
    log.write("node-b", Said(kind, {}))
    assert found(log, log.entries) == [
        "node-b 1: only the owner may author it, and its author is not the owner"
    ]
    refused = Log(OWNER)
    refused.write("node-b", Said(kind, {}, accepted=0, reason="not_the_owner"))
    assert found(refused, refused.entries) == []


def test_what_only_the_owner_may_say_is_signed_singly() -> None:
    log = Log(OWNER)
    log.write(OWNER, Said(ROUTE, {}), Said("note", {}))
    assert found(log, log.entries) == [f"{OWNER} 1: only the owner may author it, and it is not signed"]


def test_a_signature_of_one_text_is_none_of_another() -> None:
    """What is signed says that it is an op, so that nothing else that a node signs can pass for one."""
    log = Log(OWNER)
    (entry,) = log.write(OWNER, Said("note", {}))
    bare = entry._replace(signature=key_named(OWNER).sign(entry.hash.encode()))
    assert found(log, [bare]) == [f"{OWNER} 1: its signature is not one of its author's key"]
    assert signed_text(entry.hash).endswith(entry.hash.encode())
