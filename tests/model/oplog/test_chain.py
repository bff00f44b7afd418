"""The chain: the pinned hash of an entry, and seals that notice any change of a verdict."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import pytest
import rfc8785
from hypothesis import assume, given
from hypothesis import strategies as st

from proof.op_hash import op_hash
from tests.model.base.test_canonical import values
from tests.support.oplog.chains import Log, Said
from tests.support.running.examples import exactly, few, many
from vox_mesh.model.base.canonical import canonical, is_canonical, parse
from vox_mesh.model.oplog.chain import NO_HASH, SEAL, LogEntry, Sealing, Verdict, hash_of, signed_text

TEXT: Final = (
    '{"deps":["01KCA0000000000000000000AA"],"hlc":"1800000000000-00007-node-1/cli","kind":"RouteKind",'
    '"node":"node-1/cli","op_id":"01KCA0000000000000000000BB",'
    '"payload":{"a":[1,2.5,null],"\u20ac":"\U0001f600"},'
    '"prev":"0000000000000000000000000000000000000000000000000000000000000000",'
    '"repository":"default","seq":1,"v":1}'
)
DIGEST: Final = "d1ec95f4f5c597ab14bb71dfe74508d38f0463f48df979583e3a1f8dde9ca669"

VECTOR: Final = LogEntry(
    id=1,
    node_id="node-1/cli",
    seq=1,
    op_id="01KCA0000000000000000000BB",
    kind="RouteKind",
    hlc="1800000000000-00007-node-1/cli",
    causal_deps='["01KCA0000000000000000000AA"]',
    payload='{"a":[1,2.5,null],"\u20ac":"\U0001f600"}',
    repository_id="default",
    prev=NO_HASH,
    hash=DIGEST,
    signature=None,
    accepted=1,
    reason=None,
    result=None,
)
HASHED: Final = (
    *("node_id", "seq", "op_id", "kind", "hlc"),
    *("causal_deps", "payload", "repository_id", "prev"),
)

SECOND: Final = VECTOR._replace(
    agent="ada", hash="7ed5cfb14e9d64ce0b68cc26882db3db1f4387391827279421c71022c2a075fa"
)
"""The same of version 2."""

names = st.text(st.characters(codec="utf-8"), max_size=12)
hashes = st.binary(min_size=32, max_size=32).map(bytes.hex)


def test_the_pinned_vector() -> None:
    assert is_canonical(TEXT)
    assert hashlib.sha3_256(TEXT.encode()).hexdigest() == DIGEST
    assert VECTOR.true_hash == op_hash(VECTOR) == DIGEST
    assert signed_text(DIGEST, "acme") == b"vox-mesh op\nacme\n" + DIGEST.encode()


def test_the_pinned_vector_of_version_2() -> None:
    text = TEXT.replace('"v":1}', '"v":2}').replace('{"deps"', '{"agent":"ada","deps"', 1)
    text = text.replace(',"hlc"', ',"grant":null,"hlc"', 1)
    assert is_canonical(text)
    assert hashlib.sha3_256(text.encode()).hexdigest() == SECOND.hash
    assert SECOND.true_hash == op_hash(SECOND) == SECOND.hash


@pytest.mark.parametrize("named", [{"agent": "eve"}, {"agent": None}, {"grant": "g"}], ids=str)
def test_agent_and_grant_are_in_the_hash(named: dict[str, Any]) -> None:
    assert SECOND._replace(**named).true_hash != SECOND.hash
    if any(named.values()):
        assert VECTOR._replace(**named).true_hash != DIGEST


@many
@given(
    node=names,
    seq=st.integers(1, 2**53 - 1),
    op_id=names,
    kind=names,
    hlc=names,
    deps=st.lists(names, max_size=3),
    payload=values,
    repository=names,
    prev=hashes,
)
def test_the_hash_is_that_of_the_canonical_object_with_exactly_its_ten_keys(**said: Any) -> None:
    expected = hashlib.sha3_256(rfc8785.dumps({"v": 1, **said})).hexdigest()
    texts = {"deps": canonical(said["deps"]), "payload": canonical(said["payload"])}
    assert hash_of(**(said | texts)) == expected


@pytest.mark.parametrize("field", HASHED)
def test_every_hashed_field_changes_the_hash(field: str) -> None:
    others: dict[str, Any] = {"seq": 2, "causal_deps": "[]", "payload": "{}", "prev": "f" * 64}
    changed = VECTOR._replace(**{field: others.get(field, "other")})
    assert changed.true_hash != DIGEST
    assert changed.true_hash == op_hash(changed)


def test_verdict_and_signature_are_not_in_the_hash() -> None:
    changed = VECTOR._replace(id=9, accepted=0, reason="no", result="{}", signature="ed25519:" + "0" * 128)
    assert changed.true_hash == DIGEST


# --- seals ----------------------------------------------------------------------------------------

optional_texts = st.none() | st.sampled_from(["", "no", "null", "{}"]) | names
verdicts = st.lists(
    st.tuples(st.integers(1, 9), st.integers(0, 1), optional_texts, optional_texts, optional_texts),
    min_size=1,
    max_size=6,
)


def numbered(rows: list[Any], first: int = 1) -> list[Verdict]:
    return [
        (id_, seq, accepted, reason, result, signature)
        for seq, (id_, accepted, reason, result, signature) in enumerate(rows, start=first)
    ]


def claim(made: list[Verdict], seq: int = 100) -> dict[str, Any]:
    sealing = Sealing()
    for verdict in made:
        sealing.add("note", verdict)
    return sealing.claim(seq)


@many
@given(verdicts, st.data())
def test_any_change_of_any_field_of_any_verdict_changes_the_claim(
    rows: list[Any], data: st.DataObject
) -> None:
    made = numbered(rows)
    index = data.draw(st.integers(0, len(made) - 1))
    field = data.draw(st.integers(0, 5))
    old = made[index][field]
    new: Any = data.draw(st.integers(0, 10**12) if type(old) is int else optional_texts)
    assume(exactly(new) != exactly(old))
    changed: list[Any] = [*made]
    changed[index] = (*made[index][:field], new, *made[index][field + 1 :])
    assert claim(changed) != claim(made)


@few
@given(verdicts, st.data())
def test_omission_addition_and_order_change_the_claim(rows: list[Any], data: st.DataObject) -> None:
    made = numbered(rows)
    index = data.draw(st.integers(0, len(made) - 1))
    assert claim(made[:index] + made[index + 1 :]) != claim(made)
    assert claim([*made[: index + 1], *made[index:]]) != claim(made)
    other = data.draw(st.integers(0, len(made) - 1))
    if other != index:
        swapped = [*made]
        swapped[index], swapped[other] = swapped[other], swapped[index]
        assert claim(swapped) != claim(made)


@few
@given(verdicts, verdicts)
def test_two_logs_with_different_verdicts_never_have_the_same_claim(one: list[Any], other: list[Any]) -> None:
    assert (claim(numbered(one)) == claim(numbered(other))) is (one == other)


def test_a_seal_says_what_it_covers_and_the_next_begins_with_it() -> None:
    log = Log()
    log.write("a", Said("note", {}), Said("note", {}))
    first, (_, _, second) = log.seal("a"), (*log.write("a", Said("note", {})), None, log.seal("a"))
    made = [parse(first.payload), parse(second.payload)]
    assert [(each["from"], each["to"]) for each in made] == [(1, 2), (3, 4)]


def test_what_a_seal_vouches_for_is_written_down() -> None:
    """The digest is of one array of JSON per verdict and a comma: others must be able to recompute it."""
    made = numbered([(5, 1, None, '{"n":1}', None), (6, 0, "n\u00f3", None, "ed25519:00")])
    text = '[5,1,1,null,"{\\"n\\":1}",null],[6,2,0,"n\u00f3",null,"ed25519:00"],'
    assert claim(made, 3) == {
        "from": 1,
        "to": 2,
        "verdicts": hashlib.sha3_256(text.encode()).hexdigest(),
    }


@pytest.mark.parametrize("count", [1, 255, 256, 257, 600])
def test_the_digest_is_the_same_however_often_it_was_asked_for(count: int) -> None:
    made = numbered([(seq, 1, None, None, None) for seq in range(1, count + 1)])
    text = "".join(f"[{seq},{seq},1,null,null,null]," for seq in range(1, count + 1))
    sealing = Sealing()
    for verdict in made:
        sealing.add("note", verdict)
        if verdict[1] % 100 == 0:
            sealing.claim(verdict[1] + 1)
    assert sealing.claim(count + 1)["verdicts"] == hashlib.sha3_256(text.encode()).hexdigest()


def test_a_seal_is_due_when_there_is_a_verdict_that_none_vouches_for() -> None:
    sealing = Sealing()
    assert not sealing.is_due
    sealing.add("note", (1, 1, 1, None, None, None))
    assert sealing.is_due
    assert is_canonical(sealing.payload(2))
    sealing.add(SEAL, (2, 2, 1, None, None, None))
    assert not sealing.is_due, "a seal of nothing but a seal says nothing"
    assert sealing.claim(3)["from"] == 2


def test_a_seal_before_all_entries_covers_none() -> None:
    assert Sealing().claim(1) == {"from": 1, "to": 0, "verdicts": hashlib.sha3_256().hexdigest()}
