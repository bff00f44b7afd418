"""What a single reader believes: an op that its author signed, and nothing that only looks like one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model.oplog.test_verification import GUARD, OWNER, anything, found, like, small_log
from tests.support.oplog.chains import Log, Said, key_named, problems, rechained, signed_by, verified
from tests.support.running.examples import few
from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import canonical, parse
from vox_mesh.model.oplog.authorship import is_authentic
from vox_mesh.model.oplog.chain import ANCHOR, LogEntry
from vox_mesh.model.oplog.verification import DESIGNATE, REKEY, ChainWitness, Key, key_at

OWNER_KEY = key_named(OWNER).public
# What verdicts say is vouched for by seals, and by nothing else.
VERDICT = ("id", "accepted", "reason", "result")


def request() -> Log:
    """A request of three, of which the last is signed, and a later one."""
    log = Log(OWNER)
    log.write(OWNER, Said("note", {"n": 1}), Said("note", {"n": 2}), Said("note", {"n": 3}))
    log.write(OWNER, Said("note", {"n": 4}))
    return log


def test_an_entry_is_authentic_if_it_or_one_that_follows_it_is_signed() -> None:
    log = request()
    chain = log.chain(OWNER)
    for index, entry in enumerate(chain):
        assert is_authentic(entry, chain[index:], log.keys)
    assert not is_authentic(chain[0], chain[:2], log.keys), "no one signed these"
    assert not is_authentic(chain[0], chain[1:], log.keys)
    assert not is_authentic(chain[0], [], log.keys)
    assert not is_authentic(chain[0], [chain[0], chain[2]], log.keys)
    assert not is_authentic(chain[0], chain, [])
    assert not is_authentic(chain[0], chain, [Key(OWNER, 1, key_named("thief").public)])
    assert not is_authentic(chain[0], chain, [Key(OWNER, 2, OWNER_KEY)])


def test_an_entry_of_an_old_key_is_not_authentic_by_a_signature_of_the_new_one() -> None:
    log = request()
    new = key_named("new")
    first, *others = log.chain(OWNER)
    forged = rechained(
        [first._replace(payload="1"), *(each._replace(signature=None) for each in others)], new
    )
    forged[-1] = signed_by(new, forged[-1])
    keys = [*log.keys, Key(OWNER, 4, new.public)]
    assert key_at(3, keys) == OWNER_KEY
    assert key_at(4, keys) == new.public
    assert not is_authentic(forged[0], forged, keys)
    assert is_authentic(forged[-1], forged[-1:], keys)


@pytest.mark.parametrize("field", [field for field in LogEntry._fields if field not in VERDICT])
def test_a_changed_field_makes_an_entry_no_ones(field: str) -> None:
    log = request()
    for index in range(3):
        chain = log.chain(OWNER)[:3]
        for value in like(getattr(chain[index], field)):
            if field == "signature" and (value is None or index < 2):
                continue  # that of a later one will do
            changed = [*chain]
            changed[index] = chain[index]._replace(**{field: value})
            assert not is_authentic(changed[0], changed, log.keys), (index, value)


def designation() -> LogEntry:
    return Log(OWNER).write(OWNER, Said(DESIGNATE, {"node": "node-b"}, is_signed=True))[0]


def test_only_what_the_owner_signed_itself_is_the_owners() -> None:
    entry, witness = designation(), ChainWitness(OWNER_KEY, ())
    assert witness.is_of_owner(entry)
    assert not witness.is_of_owner(entry._replace(signature=None))
    assert not witness.is_of_owner(signed_by(key_named("thief"), entry))
    assert not witness.is_of_owner(signed_by(key_named("thief"), entry._replace(payload='{"node":"thief"}')))
    assert not ChainWitness(None, ()).is_of_owner(entry)
    assert not ChainWitness(key_named("thief").public, ()).is_of_owner(entry)


@pytest.mark.parametrize("owner_key", ["", "ed25519:", "ed25519:" + "0" * 64, "garbage"])
def test_an_owner_without_a_key_says_nothing(owner_key: str) -> None:
    assert not ChainWitness(owner_key, ()).is_of_owner(designation())


def cut_elsewhere(entry: LogEntry) -> LogEntry:
    """Another entry with the same hash: what one says within its payload, the other says itself."""
    inner = parse(entry.payload)["op"]
    head, _, rest = canonical(inner).removeprefix('{"deps":[],').partition(',"payload":')
    before, after = entry.payload.split(canonical(inner))
    said = parse("{" + head + "}")
    texts = canonical({"hlc": entry.hlc, "kind": entry.kind, "node": entry.node_id, "op_id": entry.op_id})
    return entry._replace(
        causal_deps=f'{entry.causal_deps},{texts[1:-1]},"payload":{before}{{"deps":[]',
        payload=rest + after,
        kind=said["kind"],
        hlc=said["hlc"],
        node_id=said["node"],
        op_id=said["op_id"],
    )


def test_an_op_within_a_payload_that_the_owner_signed_is_none_of_the_owners() -> None:
    inner = {
        "deps": [],
        "hlc": f"1900000000000-00000-{OWNER}",
        "kind": DESIGNATE,
        "node": OWNER,
        "op_id": "01KCA0000000000000000000AA",
        "payload": {"node": "thief"},
    }
    log = Log(OWNER)
    (entry,) = log.write(OWNER, Said("note", {"op": inner}, is_signed=True))
    forged = cut_elsewhere(entry)
    assert forged.true_hash == entry.hash, "or this shows nothing"
    assert forged.kind == DESIGNATE
    assert not ChainWitness(OWNER_KEY, ()).is_of_owner(forged)
    assert not is_authentic(forged, [forged], log.keys)
    assert found(log, [forged])


# --- whatever a row holds, it is judged -----------------------------------------------------------

garbage = st.builds(LogEntry, *[anything for _ in LogEntry._fields])


@few
@given(st.lists(garbage, min_size=1, max_size=4))
def test_rows_of_garbage_are_found_and_believed_by_no_one(rows: list[LogEntry]) -> None:
    log = small_log()
    witness = ChainWitness(log.owner_key, log.keys)
    for row in rows:
        assert not is_authentic(row, rows[rows.index(row) :], log.keys)
        assert not witness.is_of_owner(row)
        witness.hear(row)
    assert not witness.heads
    assert all(report.problem for report in verified(rows, log.keys, log.owner_key))


heads = st.dictionaries(
    st.sampled_from([OWNER, "node-b", "", "unknown"]),
    st.one_of(
        st.tuples(anything.filter(lambda value: type(value) is not bytes), st.text(max_size=4)).map(list),
        st.lists(st.integers(0, 9), max_size=3),
        st.none(),
        st.just({}),
    ),
)


@few
@given(heads, st.data())
def test_an_anchor_that_records_nonsense_is_judged_as_well(said: dict[str, Any], data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(["heads", "Heads"]))
    payload: Any
    try:
        payload = parse(canonical({text: said}))
    except BadValue:  # a number or a text that no author could write
        payload = {}
    log = small_log()
    log.write(GUARD, Said(ANCHOR, payload))
    log.write(OWNER, Said(REKEY, {"from": payload, "key": 7}, is_signed=True))
    log.write(OWNER, Said(REKEY, payload, is_signed=True))
    verified(log.entries, log.keys, log.owner_key)


@pytest.mark.parametrize(
    "payload", ["", "{", "null", "7", "[" * 1_000 + "]" * 1_000, '{"heads":' * 1_020 + "1"]
)
@pytest.mark.parametrize("kind", [ANCHOR, REKEY])
def test_a_witness_whose_payload_is_changed_is_not_heard_and_its_own_chain_tells(
    kind: str, payload: str
) -> None:
    log = small_log()
    log.write(OWNER, Said(kind, {"heads": {}, "from": {}, "key": ""}, is_signed=True))
    entries = [
        entry._replace(payload=payload) if entry == log.chain(OWNER)[-1] else entry for entry in log.entries
    ]
    assert [problem.split(":")[0] for problem in found(log, entries)] == [f"{OWNER} {len(log.chain(OWNER))}"]


@few
@given(
    st.lists(st.builds(Key, st.sampled_from([OWNER, "node-b"]), anything, st.text(max_size=4)), max_size=4)
)
def test_keys_of_garbage_are_judged(keys: list[Key]) -> None:
    log = small_log()
    chain = log.chain(OWNER)
    assert not is_authentic(chain[0], chain, keys)
    assert problems(log.entries, keys, log.owner_key)
