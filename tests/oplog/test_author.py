"""The author: every op is in the log once, in a chain without gaps, with what became of it."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any, Final

import pytest

from tests.support.oplog.authoring import NOTE, assert_sound, ids, noted, notes, own_chain, scene
from tests.support.store.tables import make_table
from vox_mesh import Answer, Outcome, Script, Settings, Statement, Store, guard
from vox_mesh.errors import BadStatement, BadValue, ChainBroken, ConstraintFailed, MeshError, Refused
from vox_mesh.mesh import Mesh
from vox_mesh.model.base.backends import Backend
from vox_mesh.model.base.hlc import Hlc
from vox_mesh.model.oplog.chain import NO_HASH, hash_of
from vox_mesh.node import MeshNode
from vox_mesh.store.script import Op, Shape, new_key

CLOSED: Final = guard("0", refusal="closed")


def adding(table: str, number: int, *, key: str | None = None, answers: bool = False) -> Script:
    """An op that adds a row of a number that there may be once."""
    insert = Statement(f"INSERT INTO {table} (id, a) VALUES (?, 'x')", (number,))
    answer = Answer(f"SELECT count(*), max(id) FROM {table}", columns=("n", "last")) if answers else None
    return Script(insert, answer=answer, key=key, op=Op(NOTE, f'{{"n":{number}}}'))


async def numbers(mesh: Mesh, table: str) -> list[Any]:
    """The rows that ops have added."""
    return [row[0] for row in await mesh.store.read(f"SELECT id FROM {table} ORDER BY id", fresh=True)]


def found(verdicts: list[Any]) -> list[str]:
    """What each of the scripts ended in."""
    return ["applied" if isinstance(verdict, Outcome) else type(verdict).__name__ for verdict in verdicts]


async def test_a_chain_has_no_gaps_is_linked_and_its_times_rise(mesh: MeshNode) -> None:
    outcomes = await asyncio.gather(*(mesh.oplog.append(NOTE, {"n": n}) for n in range(40)))
    entries = await own_chain(mesh)
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert [entry.prev for entry in entries] == [NO_HASH, *(entry.hash for entry in entries[:-1])]
    assert ids(await notes(mesh)) == [outcome.key for outcome in outcomes]
    assert [json.loads(entry.payload)["n"] for entry in await notes(mesh)] == list(range(40))
    times = [Hlc.parse(entry.hlc) for entry in entries]
    assert all(earlier[:2] < later[:2] for earlier, later in pairwise(times))
    assert {time.author for time in times} == {mesh.identity.node_id}
    assert all(entry.true_hash == entry.hash for entry in entries)
    await assert_sound(mesh)


async def test_a_script_that_rolls_back_leaves_its_refused_entry_and_its_neighbours_alone(
    mesh: MeshNode,
) -> None:
    table = await make_table(mesh.store)
    scripts = [
        adding(table, 1),
        Script(Statement(f"INSERT INTO {table} (id) VALUES (7)"), CLOSED, op=Op(NOTE, "{}")),
        adding(table, 1),
        Script(Statement(f"INSERT INTO {table} (id) VALUES (2)")),
        Script(CLOSED),
        adding(table, 3),
    ]
    verdicts = await mesh.store.write_all(scripts)
    assert found(verdicts) == ["applied", "Refused", "ConstraintFailed", "applied", "Refused", "applied"]
    assert await numbers(mesh, table) == [1, 2, 3]
    entries = await notes(mesh)
    assert ids(entries) == [script.key for script in scripts if script.op is not None]
    assert [(entry.accepted, entry.reason) for entry in entries] == [
        (1, None),
        (0, "closed"),
        (0, "failed"),
        (1, None),
    ]
    await assert_sound(mesh)


async def test_an_answer_is_in_the_log_as_an_object_of_its_columns(mesh: MeshNode) -> None:
    names = tuple(f"column {number}" for number in range(12))
    values = "1, -9223372036854775807, 'text', NULL, x'00ff', 'é ✓ \"', '', x'', 0, 'a' || char(10), 12, '{}'"
    answer = Answer(f"SELECT {values}", columns=names)
    outcome = await mesh.store.write(Script(answer=answer, op=Op(NOTE, "{}")))
    empty = Answer("SELECT 1 WHERE 0", columns=("nothing",))
    await mesh.store.write(Script(answer=empty, op=Op(NOTE, "{}")))
    entries = await notes(mesh)
    found = (1, -(2**63) + 1, "text", None, "00FF", 'é ✓ "', "", "", 0, "a\n", 12, "{}")
    assert json.loads(entries[0].result or "") == dict(zip(names, found, strict=True))
    assert outcome.rows[0][4:6] == (b"\x00\xff", 'é ✓ "')
    assert json.loads(entries[1].result or "") == {}
    await mesh.store.write(mesh.oplog.seal_script())
    await assert_sound(mesh)


async def test_an_op_sent_twice_takes_effect_once_and_answers_the_same(mesh: MeshNode) -> None:
    table = await make_table(mesh.store)
    good, bad = new_key(), new_key()
    first = await mesh.store.write(adding(table, 1, key=good, answers=True))
    with pytest.raises(ConstraintFailed):
        await mesh.store.write(adding(table, 1, key=bad))
    await mesh.store.write(Script(Statement(f"DELETE FROM {table}")))  # now neither would be refused
    again = await mesh.store.write(adding(table, 1, key=good, answers=True))
    assert (again.rows, again.repeated) == (first.rows, True)
    with pytest.raises(ConstraintFailed):
        await mesh.store.write(adding(table, 1, key=bad))
    forgetting = Statement("DELETE FROM script_results WHERE script_key IN (?, ?)", (good, bad))
    await mesh.store.write(Script(forgetting))  # the log remembers
    mixed = await mesh.store.write_all(
        [adding(table, 1, key=bad), adding(table, 5), adding(table, 1, key=good, answers=True)]
    )
    assert found(mixed) == ["ConstraintFailed", "applied", "applied"]
    last = mixed[2]
    assert isinstance(last, Outcome)
    assert last.rows == first.rows
    assert await numbers(mesh, table) == [5]
    assert ids(await notes(mesh))[:2] == [good, bad]
    assert len(await notes(mesh)) == 3
    await assert_sound(mesh)


async def test_a_refused_op_stays_refused_for_the_same_reason_when_its_guard_would_hold(
    mesh: MeshNode,
) -> None:
    table = await make_table(mesh.store)
    insert = Statement(f"INSERT INTO {table} (id) VALUES (1)")
    is_open = guard(f"EXISTS (SELECT 1 FROM {table} WHERE id = 9)", refusal="not_open")
    script = noted(is_open, insert, key=new_key())
    with pytest.raises(Refused, match="not_open"):
        await mesh.store.write(script)
    await mesh.store.write(Script(Statement(f"INSERT INTO {table} (id) VALUES (9)")))
    with pytest.raises(Refused, match="not_open"):
        await mesh.store.write(script)
    assert await numbers(mesh, table) == [9]


@pytest.mark.parametrize("answers", [False, True])
async def test_an_op_that_is_twice_in_one_request_takes_effect_once(mesh: MeshNode, answers: bool) -> None:
    table = await make_table(mesh.store, "id INTEGER, a")  # a second row would be welcome
    script = adding(table, 1, key=new_key(), answers=answers)
    refused = noted(CLOSED, key=new_key())
    verdicts = await mesh.store.write_all([script, refused, adding(table, 2), script, refused])
    assert found(verdicts) == ["applied", "Refused", "applied", "applied", "Refused"]
    assert await numbers(mesh, table) == [1, 2]
    verdicts = await mesh.store.write_all([adding(table, 3), pair := adding(table, 4), pair])
    assert found(verdicts) == ["applied"] * 3
    assert await numbers(mesh, table) == [1, 2, 3, 4]
    assert len(await notes(mesh)) == 5
    await assert_sound(mesh)


@pytest.mark.every_home
async def test_an_op_of_an_earlier_incarnation_is_answered_by_the_next(node_settings: Settings) -> None:
    if node_settings.backend is Backend.MEMORY:
        pytest.skip("nothing outlives the process in memory")
    good, bad = new_key(), new_key()
    async with Mesh.open(node_settings) as mesh:
        table = await make_table(mesh.store, "id INTEGER, a")
        first = await mesh.store.write(adding(table, 1, key=good, answers=True))
        with pytest.raises(Refused):
            await mesh.store.write(noted(CLOSED, key=bad))
    async with Mesh.open(node_settings) as mesh:
        assert mesh.incarnation == 2
        again = await mesh.store.write(adding(table, 1, key=good, answers=True))
        assert (again.rows, again.repeated) == (first.rows, True)
        with pytest.raises(Refused, match="closed"):
            await mesh.store.write(noted(CLOSED, key=bad))
        assert await numbers(mesh, table) == [1]
        assert ids(await notes(mesh)) == [good, bad]
        await assert_sound(mesh)


SHAPE: Final = Shape(
    "test.author.add",
    (
        "INSERT INTO refusals (reason) SELECT 'refused' FROM json_each(?1) WHERE value ->> 'n' < 0",
        "INSERT INTO author_shapes (scope, n) SELECT value ->> 'scope', value ->> 'n' FROM json_each(?1)",
    ),
    answer="SELECT value ->> 'key', (value ->> 'n') * 10 FROM json_each(?1)",
    columns=("tenfold",),
    refusals={0: "negative"},
)


async def test_merged_ops_end_each_by_itself(mesh: MeshNode) -> None:
    await mesh.store.write(
        Script(Statement("CREATE TABLE IF NOT EXISTS author_shapes (scope, n, UNIQUE (scope, n))"))
    )
    scope = mesh.store.writer_id.scope_id

    def merged(*numbers: int) -> list[Script]:
        return [Script.of(SHAPE, {"scope": scope, "n": n}, op=Op(NOTE, f'{{"n":{n}}}')) for n in numbers]

    verdicts = await mesh.store.write_all(merged(1, 2, 3))
    assert [verdict.rows.value for verdict in verdicts if isinstance(verdict, Outcome)] == [10, 20, 30]
    verdicts = await mesh.store.write_all(merged(4, -1, 2, 5))
    assert found(verdicts) == ["applied", "Refused", "ConstraintFailed", "applied"]
    entries = await notes(mesh)
    assert [json.loads(entry.payload)["n"] for entry in entries] == [1, 2, 3, 4, -1, 2, 5]
    assert [entry.reason for entry in entries] == [None] * 4 + ["negative", "failed", None]
    results = [None if entry.result is None else json.loads(entry.result)["tenfold"] for entry in entries]
    assert results == [10, 20, 30, 40, None, None, 50]
    await assert_sound(mesh)


async def test_bad_sql_fails_its_own_script_only_and_leaves_no_gap(mesh: MeshNode) -> None:
    table = await make_table(mesh.store)
    scripts = [
        adding(table, 1),
        noted(Statement("INSERT INTO nowhere VALUES (1)")),
        mesh.oplog.seal_script(),
        adding(table, 2),
        Script(Statement("not even SQL")),
    ]
    verdicts = await mesh.store.write_all(scripts)
    assert found(verdicts) == ["applied", "BadStatement", "applied", "applied", "BadStatement"]
    assert await numbers(mesh, table) == [1, 2]
    entries = [entry for entry in await notes(mesh) if entry.accepted]
    assert ids(entries) == [scripts[0].key, scripts[3].key]
    with pytest.raises(BadStatement):
        await mesh.store.write(noted(Statement("SELECT FROM")))
    await mesh.oplog.append(NOTE, {})
    await assert_sound(mesh)


PAYLOADS: Final[list[dict[str, Any]]] = [
    {},
    {"": None},
    {"text": "\0 and \x1f"},
    {"é ✓ 😀": ["😀", "\u2028", "e\u0301"], "\ue000": 1, "😀": 2},
    {"n": [0, -0.0, 1.0, 1e21, 5e-324, 2**53 - 1, True]},
    {"large": "é" * 300_000},
]
NO_PAYLOADS: Final[list[dict[str, Any]]] = [
    {"n": 2**53},
    {"n": float("nan")},
    {"b": b"x"},
    {"s": "\ud800"},
]


async def test_any_payload_comes_back_as_it_went(mesh: MeshNode) -> None:
    for payload in PAYLOADS:  # each alone, in a request by itself
        await mesh.oplog.append(NOTE, payload)
    await asyncio.gather(*(mesh.oplog.append(NOTE, payload) for payload in PAYLOADS))
    texts = [entry.payload for entry in await notes(mesh)]
    refused = await mesh.store.write_all([noted(CLOSED, payload=text) for text in texts[: len(PAYLOADS)]])
    assert found(refused) == ["Refused"] * len(PAYLOADS)
    texts = [entry.payload for entry in await notes(mesh)]
    assert [json.loads(text) for text in texts] == PAYLOADS * 3
    assert texts == texts[: len(PAYLOADS)] * 3
    await assert_sound(mesh)


async def test_what_has_no_canonical_form_is_never_appended(mesh: MeshNode) -> None:
    for payload in NO_PAYLOADS:
        with pytest.raises(BadValue):
            await mesh.oplog.append(NOTE, payload)
    assert await notes(mesh) == []


async def test_a_store_without_a_log_takes_no_ops(store: Store) -> None:
    with pytest.raises(BadValue, match="no log"):
        await store.write(noted())
    with pytest.raises(MeshError):
        await store.write_all([Script(Statement("SELECT 1")), noted()])
    assert (await store.write(Script(Statement("SELECT 1")))).repeated is False


async def test_an_author_does_not_vouch_for_an_entry_that_someone_put_behind_its_own() -> None:
    async with scene() as there:
        async with there.node() as node:
            await node.oplog.append(NOTE, {})
            last = (await own_chain(node))[-1]
            hlc = Hlc.parse(last.hlc)
            later = str(hlc._replace(logical=hlc.logical + 1))
            place = (last.node_id, last.seq + 1, new_key(), NOTE, later)
            entry = (*place, "[]", '{"forged":true}', last.repository_id, last.hash)
            forging = Statement(
                "INSERT INTO agent_oplog (scope_id, accepted, node_id, seq, op_id, kind, hlc, causal_deps, "
                "payload, repository_id, prev, hash) VALUES ('', 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*entry, hash_of(*entry)),
            )
            await node.store.write(Script(forging))
            with pytest.raises(ChainBroken):
                await node.oplog.append(NOTE, {})
        async with there.node() as node:
            with pytest.raises(ChainBroken):
                await node.oplog.append(NOTE, {})
            (chain,) = await node.oplog.verify("a")
            assert chain.problem is not None
