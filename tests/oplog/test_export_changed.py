"""Exports that were changed: found, and named with the line where the file itself is damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from tests.support.oplog.exports import exported, problems
from vox_mesh.errors import BadSettings, ExportRefused
from vox_mesh.model.oplog.chain import ANCHOR, SEAL
from vox_mesh.node import MeshNode
from vox_mesh.oplog import export
from vox_mesh.oplog.export import verify_export
from vox_mesh.store.script import Script, Statement, new_key


def _chain_entry(lines: list[bytes], kind: str) -> int:
    return next(at for at, line in enumerate(lines) if b'"kind":"%b"' % kind.encode() in line)


def _with(field: str, value: Any, kind: str = "note") -> Callable[[list[bytes]], None]:
    def change(lines: list[bytes]) -> None:
        at = _chain_entry(lines, kind)
        record = orjson.loads(lines[at])
        assert record[field] != value
        record[field] = value
        lines[at] = orjson.dumps(record) + b"\n"

    return change


def _remove(lines: list[bytes]) -> None:
    del lines[3]
    _recount(lines)


def _recount(lines: list[bytes]) -> None:
    lines[-1] = orjson.dumps({"entries": len(lines) - 2}) + b"\n"


def _swap(lines: list[bytes]) -> None:
    lines[2], lines[3] = lines[3], lines[2]


def _repeat(lines: list[bytes]) -> None:
    lines.insert(3, lines[2])
    _recount(lines)


def _cut_what_was_anchored(lines: list[bytes]) -> None:
    del lines[_chain_entry(lines, SEAL)]
    _recount(lines)


def _drop_chain(lines: list[bytes]) -> None:
    lines[1:-1] = [line for line in lines[1:-1] if b'/cli","seq"' in line]
    _recount(lines)


def _chain_in_two_parts(lines: list[bytes]) -> None:
    lines.insert(-1, lines.pop(5))


def _other_key(lines: list[bytes]) -> None:
    header = orjson.loads(lines[0])
    header["keys"][0]["public_key"] = "ed25519:" + "0" * 64
    lines[0] = orjson.dumps(header) + b"\n"


def _no_keys(lines: list[bytes]) -> None:
    header = orjson.loads(lines[0])
    header["keys"] = []
    lines[0] = orjson.dumps(header) + b"\n"


_CHANGES: Final[dict[str, Callable[[list[bytes]], None]]] = {
    "id": _with("id", 0, SEAL),
    "node": _with("node_id", "someone"),
    "number": _with("seq", 7),
    "op id": _with("op_id", new_key()),
    "kind": _with("kind", "other"),
    "time": _with("hlc", "1794735399254-00000-x"),
    "dependencies": _with("causal_deps", [new_key()]),
    "payload": _with("payload", {"n": 100}),
    "link": _with("prev", "1" * 64),
    "hash": _with("hash", "1" * 64),
    "signature": _with("signature", "ed25519:" + "0" * 128),
    "no signature": _with("signature", None),
    "verdict": _with("accepted", True, "derived"),
    "reason": _with("reason", "because", "derived"),
    "result": _with("result", "{}"),
    "seal": _with("payload", {"from": 1, "to": 2, "verdicts": "0" * 64}, SEAL),
    "anchor": _with("payload", {"heads": {}}, ANCHOR),
    "an entry is gone": _remove,
    "two are swapped": _swap,
    "one comes twice": _repeat,
    "the end is cut off": _cut_what_was_anchored,
    "a chain is gone": _drop_chain,
    "a chain is in two parts": _chain_in_two_parts,
    "another key": _other_key,
    "no keys": _no_keys,
}


@pytest.mark.parametrize("change", _CHANGES.values(), ids=_CHANGES.keys())
def test_a_change_is_found(log: Path, change: Callable[[list[bytes]], None]) -> None:
    assert problems(log) == []
    lines = log.read_bytes().splitlines(keepends=True)
    before = [*lines]
    change(lines)
    assert lines != before
    log.write_bytes(b"".join(lines))
    assert problems(log)


def _cut_file(lines: list[bytes]) -> int:
    del lines[-1]
    return len(lines)


def _cut_line(lines: list[bytes]) -> int:
    lines[4:] = [lines[4][:-20]]
    return 5


def _miscount(lines: list[bytes]) -> int:
    del lines[3]
    return len(lines)


def _append(lines: list[bytes]) -> int:
    lines.append(lines[2])
    return len(lines)


def _respell(lines: list[bytes]) -> int:
    lines[2] = lines[2].replace(b'"seq":', b'"seq": ')
    return 3


def _say_twice(lines: list[bytes]) -> int:
    lines[2] = lines[2].replace(b'{"id":', b'{"kind":"harmless","id":')
    return 3


def _hide_a_witness(lines: list[bytes]) -> int:
    at = _chain_entry(lines, ANCHOR)
    lines[at] = lines[at].replace(b'"kind":"Anchor"', b'"kind":"\\u0041nchor"')
    return at + 1


def _add_column(lines: list[bytes]) -> int:
    lines[2] = lines[2].removesuffix(b"}\n") + b',"approved":true}\n'
    return 3


def _strange_node(lines: list[bytes]) -> int:
    lines[2] = orjson.dumps(orjson.loads(lines[2]) | {"node_id": ["a"]}) + b"\n"
    return 3


def _nested(lines: list[bytes]) -> int:
    lines[2] = lines[2].replace(b'"payload":', b'"payload":' + b"[" * 900 + b"]" * 900 + b',"x":')
    return 3


def _other_repository(lines: list[bytes]) -> int:
    lines[2] = orjson.dumps(orjson.loads(lines[2]) | {"repository_id": "website"}) + b"\n"
    return 3


def _respelt_header(lines: list[bytes]) -> int:
    lines[0] = lines[0].replace(b'"version":1', b'"version":1,"version":1')
    return 1


_DAMAGES: Final = (
    *(_cut_file, _cut_line, _miscount, _append, _respell, _say_twice, _hide_a_witness, _add_column),
    *(_strange_node, _nested, _other_repository, _respelt_header),
)


@pytest.mark.parametrize("damage", _DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
def test_a_damaged_file_is_named_with_the_line(log: Path, damage: Callable[[list[bytes]], int]) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    number = damage(lines)
    log.write_bytes(b"".join(lines))
    with pytest.raises(ExportRefused, match=f"log.jsonl, line {number}: "):
        verify_export(log)


@pytest.mark.parametrize("block", [1, 700, 1_000, 10_000])
def test_an_entry_about_other_chains_is_found_wherever_a_block_of_the_file_ends(
    log: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = verify_export(log)
    assert any(chain.anchored_to for chain in whole.chains)
    monkeypatch.setattr(export, "_BLOCK_BYTES", block)
    assert verify_export(log) == whole
    lines = log.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines[1:-1], 2):
        lines[number - 1] = line.replace(b'"payload":{', b'"payload":{"kind":"Anchor","x":0,')
        log.write_bytes(b"".join(lines))
        with pytest.raises(ExportRefused, match=f"log.jsonl, line {number}: "):
            verify_export(log)
        lines[number - 1] = line


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"Dear log,\n",
        b"[]\n",
        b"{}\n",
        b"\xff\xfe\0",
        b'{"format":"vox-mesh oplog","version":2}\n',
    ],
)
def test_what_is_no_export_is_called_so(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "letter"
    path.write_bytes(content)
    with pytest.raises(BadSettings, match="not an export of a log"):
        verify_export(path)


def test_a_folder_and_a_missing_file_are_no_exports(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(BadSettings, match="not an export of a log"):
            verify_export(path)


async def test_what_was_changed_in_the_database_is_found_in_its_export(
    anchored: MeshNode, tmp_path: Path
) -> None:
    """Also where the change left something that is no JSON, or no text."""
    changes = (
        "payload = 'no JSON'",
        "payload = '{ }'",
        "payload = x'7b7d'",
        "causal_deps = '[1'",
        "accepted = 7",
    )
    for number, change in enumerate(changes):
        entry = (await anchored.oplog.tail(1, kind="note"))[0]
        kept = Statement("CREATE TABLE kept AS SELECT * FROM agent_oplog WHERE id = ?", (entry.id,))
        await anchored.store.write(
            Script(kept, Statement(f"UPDATE agent_oplog SET {change} WHERE id = ?", (entry.id,)))
        )
        done = await exported(anchored, tmp_path / f"{number}.jsonl")
        there = await anchored.oplog.verify()
        assert [chain.seq for chain in there if chain.problem] == [entry.seq], change
        assert [chain.seq for chain in verify_export(done.path).chains if chain.problem] == [entry.seq], (
            change
        )
        await anchored.store.write(
            Script(
                Statement("DELETE FROM agent_oplog WHERE id = ?", (entry.id,)),
                Statement("INSERT INTO agent_oplog SELECT * FROM kept"),
                Statement("DROP TABLE kept"),
            )
        )
    assert [chain.problem for chain in await anchored.oplog.verify()] == [None, None]


def test_one_chain_can_be_verified_alone(log: Path) -> None:
    _, commands = verify_export(log).chains
    assert verify_export(log, commands.node_id).chains == [commands]
    assert verify_export(log, "unknown").chains == []
