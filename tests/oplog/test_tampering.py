"""What the log promises: whatever is changed in the database behind its back is found, and where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pytest

from tests.support.oplog import tampering as at
from tests.support.oplog.tampering import (
    NO_ENTRY,
    NO_HASH_OF_IT,
    NOT_SIGNED_BY_AUTHOR,
    NOTE,
    VERDICTS,
    Found,
    TamperedLog,
    assert_found,
)
from vox_mesh import Settings
from vox_mesh.errors import ChainBroken
from vox_mesh.model.oplog.verification import ChainReport
from vox_mesh.store import Value, new_key

pytestmark = pytest.mark.asyncio(loop_scope="module")


# --- a single field -------------------------------------------------------------------------------


class Field(NamedTuple):
    """A change of one column of one entry of the node's chain, and what is found where."""

    seq: int
    column: str
    change: Callable[[Any], Value]
    found_at: int
    problem: str


def to(value: Value) -> Callable[[Any], Value]:
    """Whatever it was."""
    return lambda _: value


def other_hex(text: str) -> str:
    """Another hexadecimal text of the same form."""
    return text[:-1] + ("0" if text[-1] != "0" else "1")


FIELDS: Final = {
    "seq of the last": Field(at.OWN_ANCHOR, "seq", to(12), 12, "entry 11 is missing"),
    "seq of one between": Field(at.LATE_NOTE, "seq", to(77), at.SECOND_SEAL, "entry 9 is missing"),
    "seq of the first": Field(at.INITIALISED, "seq", to(0), 0, "its number comes twice"),
    "op_id": Field(at.FIRST_NOTE, "op_id", lambda _: new_key(), at.FIRST_NOTE, NO_HASH_OF_IT),
    "kind": Field(at.FIRST_NOTE, "kind", to("test.other"), at.FIRST_NOTE, NO_HASH_OF_IT),
    "kind of an anchor": Field(at.OWN_ANCHOR, "kind", to("test.note"), at.OWN_ANCHOR, NO_HASH_OF_IT),
    "kind of a seal": Field(at.FIRST_SEAL, "kind", to("test.note"), at.FIRST_SEAL, NO_HASH_OF_IT),
    "hlc": Field(at.ANSWERED, "hlc", lambda hlc: f"9{hlc[1:]}", at.ANSWERED, NO_HASH_OF_IT),
    "causal_deps": Field(at.DEFERRED, "causal_deps", to("[]"), at.DEFERRED, NO_HASH_OF_IT),
    "payload": Field(at.LAST_NOTE, "payload", to('{"text":"lost"}'), at.LAST_NOTE, NO_HASH_OF_IT),
    "payload in another order": Field(
        at.FIRST_NOTE, "payload", to('{"text":"first","n":1}'), at.FIRST_NOTE, NO_HASH_OF_IT
    ),
    "payload with a space": Field(
        at.FIRST_NOTE, "payload", lambda text: text.replace(":", ": "), at.FIRST_NOTE, NO_HASH_OF_IT
    ),
    "payload with another form of a number": Field(
        at.FIRST_NOTE, "payload", lambda text: text.replace("1", "1.0"), at.FIRST_NOTE, NO_HASH_OF_IT
    ),
    "payload of an op that was refused": Field(
        at.REFUSED, "payload", to('{"text":"agreed"}'), at.REFUSED, NO_HASH_OF_IT
    ),
    "prev": Field(at.ANSWERED, "prev", other_hex, at.ANSWERED, "it is not linked to the entry before it"),
    "hash": Field(at.ANSWERED, "hash", other_hex, at.ANSWERED, NO_HASH_OF_IT),
    "hash of the last": Field(at.OWN_ANCHOR, "hash", other_hex, at.OWN_ANCHOR, NO_HASH_OF_IT),
    "signature": Field(at.LAST_NOTE, "signature", other_hex, at.LAST_NOTE, NOT_SIGNED_BY_AUTHOR),
    "signature that is none": Field(
        at.LAST_NOTE, "signature", to("ed25519:"), at.LAST_NOTE, NOT_SIGNED_BY_AUTHOR
    ),
    "signature removed": Field(at.LAST_NOTE, "signature", to(None), at.FIRST_SEAL, VERDICTS),
    "signature of the owner removed": Field(
        at.DESIGNATED,
        "signature",
        to(None),
        at.DESIGNATED,
        "only the owner may author it, and it is not signed",
    ),
    "signature of the last removed": Field(
        at.OWN_ANCHOR, "signature", to(None), at.OWN_ANCHOR, "it ends with an entry that is not signed"
    ),
    "accepted made refused": Field(at.LAST_NOTE, "accepted", to(0), at.LAST_NOTE, "its verdict is neither"),
    "accepted of an owner's op": Field(
        at.DESIGNATED, "accepted", to(0), at.DESIGNATED, "its verdict is neither"
    ),
    "accepted made something else": Field(
        at.LATE_NOTE, "accepted", to(2), at.LATE_NOTE, "its verdict is neither"
    ),
    "refused made accepted": Field(at.REFUSED, "accepted", to(1), at.FIRST_SEAL, VERDICTS),
    "accepted of a seal": Field(
        at.SECOND_SEAL, "reason", to("odd"), at.SECOND_SEAL, "a seal is never refused"
    ),
    "reason": Field(at.REFUSED, "reason", to("some_other_day"), at.FIRST_SEAL, VERDICTS),
    "reason removed": Field(at.REFUSED, "reason", to(None), at.REFUSED, "its verdict is neither"),
    "reason added": Field(at.LATE_NOTE, "reason", to("deferred"), at.SECOND_SEAL, VERDICTS),
    "reason of a deferred op removed": Field(at.DEFERRED, "reason", to(None), at.FIRST_SEAL, VERDICTS),
    "result": Field(at.ANSWERED, "result", to('{"seven":8}'), at.FIRST_SEAL, VERDICTS),
    "result removed": Field(at.ANSWERED, "result", to(None), at.FIRST_SEAL, VERDICTS),
    "result added": Field(at.REFUSED, "result", to("{}"), at.FIRST_SEAL, VERDICTS),
    "id of the first": Field(at.INITIALISED, "id", lambda place: -place, at.FIRST_SEAL, VERDICTS),
    "id of one between": Field(
        at.ANSWERED, "id", lambda place: -place, at.ANSWERED, "it was committed before"
    ),
    "scope_id": Field(at.DEFERRED, "scope_id", lambda _: new_key(), at.FIRST_SEAL, "entry 7 is missing"),
    "repository_id": Field(at.DEFERRED, "repository_id", to("other"), at.FIRST_SEAL, "entry 7 is missing"),
    "payload as bytes": Field(at.LATE_NOTE, "payload", str.encode, at.LATE_NOTE, "its payload is not"),
    "causal_deps as bytes": Field(
        at.LATE_NOTE, "causal_deps", str.encode, at.LATE_NOTE, "its dependencies are not"
    ),
    "kind as bytes": Field(at.LATE_NOTE, "kind", str.encode, at.LATE_NOTE, NO_ENTRY),
    "signature as bytes": Field(at.LATE_NOTE, "signature", str.encode, at.LATE_NOTE, NO_ENTRY),
    "result as bytes": Field(at.LATE_NOTE, "result", to(b"{}"), at.LATE_NOTE, "its verdict is written"),
}


@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS)
async def test_a_field_that_was_changed_is_found(scene: TamperedLog, field: Field) -> None:
    entry = (await scene.entries(scene.chain))[field.seq - 1]
    changed = field.change(getattr(entry, field.column, ""))
    await scene.set(scene.chain, field.seq, **{field.column: changed})
    await assert_found(scene, Found(scene.chain, field.found_at, field.problem))


async def test_a_log_that_no_one_changed_has_no_fault(scene: TamperedLog) -> None:
    own, commands = await scene.node.oplog.verify()
    assert own == ChainReport(scene.chain, 11, at.LATE_NOTE, at.SECOND_SEAL)
    assert commands == ChainReport(scene.commands, 2, at.ANCHOR, at.COMMANDS_SEAL)


async def test_a_fault_is_found_by_looking_at_its_chain_alone(scene: TamperedLog) -> None:
    await scene.delete(scene.chain, at.LATE_NOTE, at.OWN_ANCHOR)
    (own,) = await scene.node.oplog.verify(scene.chain)
    assert own.problem is not None
    assert own.seq == at.FIRST_SEAL
    (commands,) = await scene.node.oplog.verify(scene.commands)
    assert commands.problem is None


# --- what is found later --------------------------------------------------------------------------


async def test_a_verdict_that_was_changed_before_its_seal_is_found_with_it(settings: Settings) -> None:
    async with at.open_scene(settings) as scene:
        await scene.set(scene.chain, at.OWN_ANCHOR, reason="changed")
        assert [report.problem for report in await scene.node.oplog.verify()] == [None, None]
        await scene.node.store.write(scene.node.oplog.seal_script())
        await assert_found(scene, Found(scene.chain, at.OWN_ANCHOR + 1, VERDICTS))


async def test_a_tail_that_was_cut_off_before_its_anchor_is_missed_by_its_author(settings: Settings) -> None:
    async with at.open_scene(settings) as scene:
        await scene.delete(scene.chain, at.OWN_ANCHOR, at.OWN_ANCHOR)
        assert [report.problem for report in await scene.node.oplog.verify()] == [None, None]
        with pytest.raises(ChainBroken, match=f"no longer holds entry {at.OWN_ANCHOR}"):
            await scene.node.oplog.append(NOTE.name, {})
