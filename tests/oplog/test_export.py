"""Exports of the log: whole, verifiable by themselves, and not to be changed unnoticed."""

from __future__ import annotations

import os
import stat
import tracemalloc
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.support.oplog.exports import AWKWARD, exported, fill, problems
from tests.support.running.lengths import EVERY_HOME, SOAK
from tools.homes import FILE, HomeCase
from tools.sqld import Server
from vox_mesh import Mesh
from vox_mesh.errors import ExportRefused
from vox_mesh.model.base.canonical import parse
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.oplog.chain import NO_HASH, SEAL, LogEntry, Sealing, hash_of, signed_text
from vox_mesh.model.rhythm.tempo import BeatStamp
from vox_mesh.node import MeshNode
from vox_mesh.nodes.identity import temporary_identity
from vox_mesh.oplog.archive.entry_lines import record_of
from vox_mesh.oplog.export import export_log, verify_export
from vox_mesh.store.script import new_key


def names_in(folder: Path) -> list[str]:
    """What lies there next to the database."""
    return sorted(path.name for path in folder.iterdir() if path.name not in ("vox", ".config"))


@pytest.mark.parametrize("case", EVERY_HOME, ids=str)
async def test_an_export_is_found_to_be_what_the_database_holds(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: Server | None = request.getfixturevalue("shared_server") if case.needs_server else None
    settings = case.settings(tmp_path, server)
    async with Mesh.open(settings) as mesh:
        await fill(mesh)
        await mesh.oplog.anchor()
        done = await exported(mesh, tmp_path / "log.jsonl")
        there = await mesh.oplog.verify()
    header, chains, *_ = verify_export(done.path)
    assert chains == there
    assert [chain.problem for chain in chains] == [None]
    assert done.entries == sum(chain.entries for chain in chains)
    assert done.chains == 1
    assert (header.scope_id, header.repository_id) == (settings.scope_id, settings.repository_id)
    assert header.owner is not None
    assert header.owner.node_id == mesh.identity.node_id


def test_an_export_is_for_its_owner_alone_and_leaves_nothing_beside_it(original: Path) -> None:
    assert stat.S_IMODE(original.stat().st_mode) == 0o600
    assert names_in(original.parent) == ["log.jsonl"]


def test_payload_and_dependencies_are_json_values(log: Path) -> None:
    entries = [parse(line) for line in log.read_bytes().splitlines()[1:-1]]
    notes = [entry for entry in entries if entry["kind"] == "note"]
    assert notes[3]["payload"] == AWKWARD
    assert len(notes[4]["causal_deps"]) == 1
    refused = next(entry for entry in entries if entry["kind"] == "derived")
    assert (refused["accepted"], refused["reason"]) == (False, "not_the_coordinator")


async def test_an_export_may_have_its_bar_and_beat_in_the_header(anchored: MeshNode, tmp_path: Path) -> None:
    path, stamp = tmp_path / "log.jsonl", BeatStamp("220fedd8286923ef", 3)
    await export_log(anchored.oplog, *anchored.store.mesh_id, path, stamp)
    verified = verify_export(path)
    assert verified.header.stamp == stamp
    assert all(chain.problem is None for chain in verified.chains)
    line, _, rest = path.read_bytes().partition(b"\n")
    for old, new in ((b":3}", b":0}"), (b'"220f', b'"220F'), (b',"beat_index":3}', b"}")):
        path.write_bytes(line.replace(old, new) + b"\n" + rest)
        with pytest.raises(ExportRefused, match="the header is not written as an export writes it"):
            verify_export(path)


async def test_an_export_never_overwrites(anchored: MeshNode, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    for path in (taken, link):
        with pytest.raises(ExportRefused, match="exists already"):
            await exported(anchored, path)
    assert taken.read_text() == "mine"
    with pytest.raises(ExportRefused, match="missing"):
        await exported(anchored, tmp_path / "missing" / "log")
    assert names_in(tmp_path) == ["link", "taken"]


async def test_an_export_that_fails_leaves_no_file(
    anchored: MeshNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("vox_mesh.oplog.export.publish", full)
    with pytest.raises(ExportRefused, match="No space left"):
        await exported(anchored, tmp_path / "log.jsonl")
    assert names_in(tmp_path) == []


# --- a log that goes on meanwhile ----------------------------------------------------------------


@pytest.mark.parametrize("what", ["verify", "export"])
async def test_what_is_written_meanwhile_is_no_part_of_what_is_looked_at(
    anchored: MeshNode, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New chains with their keys, and anchors over what was read already, come between any two reads."""
    settings = FILE.settings(tmp_path, None, scope_id=anchored.store.writer_id.scope_id)
    read, count = anchored.store.read, 0

    async def after_a_stranger(*arguments: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        if count <= 12:
            other = settings.model_copy(update={"node_id": f"a-{20 - count}"})
            async with Mesh.open_command(other) as command:
                await command.oplog.anchor()
            await anchored.oplog.append("note", {"meanwhile": count})
        return await read(*arguments, **named)

    monkeypatch.setattr(anchored.store, "read", after_a_stranger)
    if what == "verify":
        chains = await anchored.oplog.verify()
    else:
        chains = verify_export((await exported(anchored, tmp_path / "log.jsonl")).path).chains
    assert count >= 3
    assert [chain for chain in chains if chain.problem is not None] == []


# --- long ones -----------------------------------------------------------------------------------


class _Author:
    """Writes a long chain straight into an export, as an author would bind it."""

    def __init__(self, key: SigningKey) -> None:
        self._key = key
        self._sealing = Sealing()
        self._seq, self._prev = 0, NO_HASH

    def entry(self, kind: str, payload: str, signed: bool) -> LogEntry:
        self._seq += 1
        if kind == SEAL:
            payload = self._sealing.payload(self._seq)
        op_id, hlc = new_key(), f"{1_794_735_399_254 + self._seq}-00000-n"
        own = hash_of("n", self._seq, op_id, kind, hlc, "[]", payload, "default", self._prev)
        signature = self._key.sign(signed_text(own)) if signed else None
        entry = LogEntry(
            *(self._seq, "n", self._seq, op_id, kind, hlc, "[]", payload, "default", self._prev, own),
            *(signature, 1, None, None),
        )
        self._prev = own
        self._sealing.add(kind, entry.verdict)
        return entry


def _long_export(path: Path, count: int) -> None:
    key = temporary_identity("n").key
    author = _Author(key)
    with path.open("wb") as file:
        head = {"format": "vox-mesh oplog", "version": 1, "scope_id": "", "repository_id": "default"}
        keys = [{"node_id": "n", "from_seq": 1, "public_key": key.public}]
        file.write(orjson.dumps(head | {"owner": None, "keys": keys}) + b"\n")
        for number in range(1, count + 1):
            kind = SEAL if number % 1_000 == 0 else "note"
            is_signed = number % 64 == 0 or number == count
            file.write(orjson.dumps(record_of(author.entry(kind, f'{{"n":{number}}}', is_signed))) + b"\n")
        file.write(orjson.dumps({"entries": count}) + b"\n")


def _peak(path: Path) -> int:
    tracemalloc.start()
    try:
        assert problems(path) == []
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.soak
@pytest.mark.timeout(1_800 if SOAK else 180)
def test_memory_stays_flat_however_long_the_log(tmp_path: Path) -> None:
    short, long = (1_000, 1_000_000) if SOAK else (400, 4_000)
    peaks = []
    for count in (short, long):
        path = tmp_path / f"{count}.jsonl"
        _long_export(path, count)
        peaks.append(_peak(path))
    print(f"verifying {short:,} and {long:,} entries took up to {peaks[0]:,} and {peaks[1]:,} bytes")
    assert peaks[1] < peaks[0] + 300_000
