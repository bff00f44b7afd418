"""Exports of the log: whole, verifiable by themselves, and not to be changed unnoticed."""

from __future__ import annotations

import asyncio
import os
import stat
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from tests.support.lengths import SOAK
from tools.homes import ALL_HOMES, FILE, HomeCase
from tools.sqld import Server
from vox_mesh import Mesh, OpKind, Settings
from vox_mesh.coordination.clock import Surroundings
from vox_mesh.coordination.export import Exported, export_log, record_of, verify_export
from vox_mesh.coordination.identity import passing_identity
from vox_mesh.errors import BadSettings, ClockOff, ExportRefused, Refused
from vox_mesh.mesh import MeshNode
from vox_mesh.model.canonical import parse
from vox_mesh.model.chain import ANCHOR, NO_HASH, SEAL, Entry, Sealing, hash_of, signed_text
from vox_mesh.model.keys import SigningKey
from vox_mesh.store.script import Script, Statement, new_key

_NOTE: Final = OpKind("note")
_AWKWARD: Final = {
    "number": 1e21,
    "large": float(2**60),
    "small": 5e-324,
    "text": 'é"\\\u2028\x00\x7f"kind":"Anchor"',
    "😀": None,
    "\ufb33": [True, {}, []],
}


async def exported(mesh: Mesh, path: Path) -> Exported:
    """The log in a file."""
    return await export_log(mesh.oplog, *mesh.store.tenant[:2], path)


async def fill(mesh: MeshNode) -> None:
    """Entries of all sorts: accepted, refused, deferred, sealed, anchored; in two chains."""
    mesh.oplog.register(_NOTE)
    for number in range(3):
        await mesh.oplog.append("note", {"n": number})
    await mesh.oplog.append("note", _AWKWARD)
    await mesh.oplog.append("note", {}, deps=[new_key()])
    refused = OpKind("derived", derivation=True)
    mesh.oplog.register(refused)
    with pytest.raises(Refused):
        await mesh.oplog.append("derived", {})
    await mesh.store.write(mesh.oplog.seal_script())


@asynccontextmanager
async def log_of_two_chains(folder: Path) -> AsyncIterator[MeshNode]:
    """A node with a log, which a command has anchored."""
    settings = FILE.settings(folder, None)
    async with Mesh.open(settings) as mesh:
        await fill(mesh)
        async with Mesh.open_command(settings) as command:
            await command.oplog.anchor()
        yield mesh


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[MeshNode]:
    """Such a node."""
    async with log_of_two_chains(tmp_path) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of such a log."""
    folder = tmp_path_factory.mktemp("original")

    async def make() -> Exported:
        async with log_of_two_chains(folder) as mesh:
            return await exported(mesh, folder / "log.jsonl")

    return asyncio.run(make()).path


@pytest.fixture
def log(original: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(original.read_bytes())
    return path


def names_in(folder: Path) -> list[str]:
    """What lies there beside the database."""
    return sorted(path.name for path in folder.iterdir() if path.name != "vox")


def problems(path: Path) -> list[str]:
    """What is wrong with the chains of an export."""
    return [chain.problem for chain in verify_export(path).chains if chain.problem is not None]


@pytest.mark.parametrize("case", ALL_HOMES, ids=str)
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
    header, chains = verify_export(done.path)
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
    assert notes[3]["payload"] == _AWKWARD
    assert len(notes[4]["causal_deps"]) == 1
    refused = next(entry for entry in entries if entry["kind"] == "derived")
    assert (refused["accepted"], refused["reason"]) == (False, "not_the_coordinator")


async def test_an_export_never_overwrites(mesh: MeshNode, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    for path in (taken, link):
        with pytest.raises(ExportRefused, match="exists already"):
            await exported(mesh, path)
    assert taken.read_text() == "mine"
    with pytest.raises(ExportRefused, match="missing"):
        await exported(mesh, tmp_path / "missing" / "log")
    assert names_in(tmp_path) == ["link", "taken"]


async def test_an_export_that_fails_leaves_no_file(
    mesh: MeshNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("vox_mesh.coordination.export.publish", full)
    with pytest.raises(ExportRefused, match="No space left"):
        await exported(mesh, tmp_path / "log.jsonl")
    assert names_in(tmp_path) == []


# --- a log that goes on meanwhile ----------------------------------------------------------------


@pytest.mark.parametrize("what", ["verify", "export"])
async def test_what_is_written_meanwhile_is_no_part_of_what_is_looked_at(
    mesh: MeshNode, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New chains with their keys, and anchors over what was read already, come between any two reads."""
    settings = FILE.settings(tmp_path, None, scope_id=mesh.store.tenant.scope_id)
    read, count = mesh.store.read, 0

    async def after_a_stranger(*arguments: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        if count <= 12:
            other = settings.model_copy(update={"node_id": f"a-{20 - count}"})
            async with Mesh.open_command(other) as command:
                await command.oplog.anchor()
            await mesh.oplog.append("note", {"meanwhile": count})
        return await read(*arguments, **named)

    monkeypatch.setattr(mesh.store, "read", after_a_stranger)
    if what == "verify":
        chains = await mesh.oplog.verify()
    else:
        chains = verify_export((await exported(mesh, tmp_path / "log.jsonl")).path).chains
    assert count >= 3
    assert [chain for chain in chains if chain.problem is not None] == []


# --- files that were changed ---------------------------------------------------------------------


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
    "node": _with("node_id", "somebody"),
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
    lines[2] = lines[2].replace(b'"result":null}', b'"result":null,"approved":true}')
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
    with pytest.raises(BadSettings, match="no export of a log"):
        verify_export(path)


def test_a_folder_and_a_missing_file_are_no_exports(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(BadSettings, match="no export of a log"):
            verify_export(path)


async def test_what_was_changed_in_the_database_is_found_in_its_export(
    mesh: MeshNode, tmp_path: Path
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
        entry = (await mesh.oplog.tail(1, kind="note"))[0]
        kept = Statement("CREATE TABLE kept AS SELECT * FROM agent_oplog WHERE id = ?", (entry.id,))
        await mesh.store.write(
            Script(kept, Statement(f"UPDATE agent_oplog SET {change} WHERE id = ?", (entry.id,)))
        )
        done = await exported(mesh, tmp_path / f"{number}.jsonl")
        there = await mesh.oplog.verify()
        assert [chain.seq for chain in there if chain.problem] == [entry.seq], change
        assert [chain.seq for chain in verify_export(done.path).chains if chain.problem] == [entry.seq], (
            change
        )
        await mesh.store.write(
            Script(
                Statement("DELETE FROM agent_oplog WHERE id = ?", (entry.id,)),
                Statement("INSERT INTO agent_oplog SELECT * FROM kept"),
                Statement("DROP TABLE kept"),
            )
        )
    assert [chain.problem for chain in await mesh.oplog.verify()] == [None, None]


def test_one_chain_can_be_verified_alone(log: Path) -> None:
    _, commands = verify_export(log).chains
    assert verify_export(log, commands.node_id).chains == [commands]
    assert verify_export(log, "nobody").chains == []


# --- long ones -----------------------------------------------------------------------------------


class _Author:
    """Writes a long chain straight into an export, as an author would bind it."""

    def __init__(self, key: SigningKey) -> None:
        self._key = key
        self._sealing = Sealing()
        self._seq, self._prev = 0, NO_HASH

    def entry(self, kind: str, payload: str, signed: bool) -> Entry:
        self._seq += 1
        if kind == SEAL:
            payload = self._sealing.payload(self._seq)
        op_id, hlc = new_key(), f"{1_794_735_399_254 + self._seq}-00000-n"
        own = hash_of("n", self._seq, op_id, kind, hlc, "[]", payload, "default", self._prev)
        signature = self._key.sign(signed_text(own)) if signed else None
        entry = Entry(
            *(self._seq, "n", self._seq, op_id, kind, hlc, "[]", payload, "default", self._prev, own),
            *(signature, 1, None, None),
        )
        self._prev = own
        self._sealing.add(kind, entry.verdict)
        return entry


def _long_export(path: Path, count: int) -> None:
    key = passing_identity("n").key
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


# --- the clock of whoever writes -----------------------------------------------------------------


@pytest.mark.parametrize("off_s", [-3_600, 3_600])
async def test_a_command_on_a_machine_whose_clock_is_off_authors_nothing(
    mesh: MeshNode, settings_of_mesh: Settings, off_s: int
) -> None:
    usual = Surroundings()
    skewed = Surroundings(wall_ms=lambda: usual.wall_ms() + off_s * 1_000)
    before = await mesh.oplog.last_id()
    with pytest.raises(ClockOff):
        async with Mesh.open_command(settings_of_mesh, skewed) as command:
            await command.oplog.anchor()
    with pytest.raises(ClockOff):
        async with Mesh.open_command(settings_of_mesh, skewed) as command:
            await command.roles.designate_coordinator(mesh.identity.node_id)
    assert await mesh.oplog.last_id() == before


@pytest.mark.parametrize("off_s", [-30, 30])
async def test_a_command_takes_its_times_from_the_database(
    mesh: MeshNode, settings_of_mesh: Settings, off_s: int
) -> None:
    usual = Surroundings()
    skewed = Surroundings(wall_ms=lambda: usual.wall_ms() + off_s * 1_000)
    async with Mesh.open_command(settings_of_mesh, skewed) as command:
        entry = await command.oplog.find((await command.oplog.anchor()).key)
        assert command.clock.flagged == 0
    assert abs(int(entry.hlc[:13]) - mesh.clock.now_ms) < 10_000


@pytest.fixture
def settings_of_mesh(mesh: MeshNode, tmp_path: Path) -> Settings:
    """The settings of the node."""
    return FILE.settings(tmp_path, None, scope_id=mesh.store.tenant.scope_id)


async def test_a_command_that_was_refused_is_sealed_too(mesh: MeshNode, settings_of_mesh: Settings) -> None:
    stranger = settings_of_mesh.model_copy(update={"node_id": "stranger"})
    with pytest.raises(Refused, match="not_the_owner"):
        async with Mesh.open_command(stranger) as command:
            await command.roles.designate_coordinator(mesh.identity.node_id)
    kinds = [(entry.kind, entry.accepted) for entry in await mesh.oplog.tail(node_id="stranger/cli")]
    assert kinds == [("DesignateCoordinator", 0), (SEAL, 1)]
    (chain,) = await mesh.oplog.verify("stranger/cli")
    assert (chain.problem, chain.sealed_to) == (None, 1)
