"""`vox-mesh oplog`, on logs that real nodes and commands wrote."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import RunningNode, VoxCommand, running_node
from tests.cli.node.test_nodes import interrupted, line_of
from tools.sqld import Server
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.op_names import RESTORE

_ABSENT = "01" + "0" * 24


@contextmanager
def database(vox: VoxCommand) -> Iterator[sqlite3.Connection]:
    """The file of the file home, in the hands of a client that should not have it."""
    with closing(sqlite3.connect(vox.folder / ".vox/cache/db/local.db")) as connection, connection:
        yield connection


@pytest.fixture
def node(vox: VoxCommand) -> RunningNode:
    """A node that has logged two notes and left."""
    with running_node(vox) as node:
        node.note("one")
        node.note("two")
    return node


def test_the_tail_shows_the_last_entries_by_chain_and_kind(vox: VoxCommand, node: RunningNode) -> None:
    entries = vox("oplog", "tail", "--json").document
    assert [entry["kind"] for entry in entries] == ["InitialiseMesh", "note", "note", "Seal"]
    assert {*LogEntry._fields, "window", "beat_index"} == {*entries[0]}
    assert entries[1]["payload"] == {"text": "one"}
    assert (entries[1]["node_id"], entries[1]["seq"], entries[1]["accepted"]) == (node.node_id, 2, True)
    last = vox("oplog", "tail", "--kind", "note", "--node", node.node_id, "--limit", "1", "--json").document
    assert [entry["payload"] for entry in last] == [{"text": "two"}]
    heading, first, *_ = vox("oplog", "tail").out.splitlines()
    assert heading.split() == ["hlc", "node_id", "agent", "seq", "op_id", "kind", "verdict", "payload"]
    assert first.split()[1:4] == [node.node_id, node.node_id, "1"]
    assert vox("oplog", "tail", "--node", "unknown").out == "none\n"


def test_a_followed_log_shows_entries_as_they_come_and_ends_on_ctrl_c(shared: VoxCommand) -> None:
    with running_node(shared) as node:
        first = node.note("before")
        follow = ("oplog", "tail", "--follow", "--kind", "note")
        with shared.running(*follow, "--json") as documents, shared.running(*follow, "--limit", "1") as plain:
            document = json.loads(line_of(documents))
            assert (document["op_id"], document["payload"]) == (first, {"text": "before"})
            assert f"  {first}  note  accepted  " in line_of(plain)
            second = node.note("then")
            assert json.loads(line_of(documents))["op_id"] == second
            assert second in line_of(plain)
            code, err = interrupted(documents)
            assert (code, err.count("\n")) == (130, 1)
            assert "Traceback" not in err
            assert interrupted(plain)[0] == 130


def test_a_sound_log_verifies_and_a_changed_one_names_the_entry(vox: VoxCommand, node: RunningNode) -> None:
    sound = vox("oplog", "verify", "--json")
    assert sound.code == 0
    (chain,) = sound.document
    assert (chain["node_id"], chain["entries"], chain["sealed_to"]) == (node.node_id, 4, 3)
    assert chain["problem"] is None
    assert "4 entries in 1 chain: intact" in vox("oplog", "verify").out
    with database(vox) as connection:
        connection.execute('UPDATE agent_oplog SET payload = \'{"text":"2"}\' WHERE seq = 3')
    broken = vox("oplog", "verify", "--node", node.node_id, "--json")
    assert broken.code == 1
    assert broken.err == ""
    (chain,) = broken.document
    assert (chain["seq"], chain["problem"]) == (3, "its contents do not have its hash")
    text = vox("oplog", "verify")
    assert text.code == 1
    assert f"broken: {node.node_id}, entry 3 ({chain['op_id']}): its contents" in text.out


def test_a_chain_that_is_not_there_is_reported(vox: VoxCommand, node: RunningNode) -> None:
    assert vox("oplog", "export", "log").code == 0
    for more in ((), ("--from-file", "log")):
        ended = vox("oplog", "verify", "--node", f"{node.node_id}x", *more)
        assert ended.code == 1
        assert "not found" in ended.error


def test_an_export_verifies_where_there_is_nothing_else(vox: VoxCommand, tmp_path: Path) -> None:
    with running_node(vox) as node:
        node.note("one")
        assert vox("oplog", "anchor").code == 0
        done = vox("oplog", "export", "log.jsonl", "--json").document
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (vox.folder / "log.jsonl").rename(elsewhere / "log.jsonl")
    (elsewhere / ".env").write_text("VOX_DB_DRIVER=pigeon\n")  # which no command that reads settings survives
    alone = VoxCommand(elsewhere)
    chains = alone("oplog", "verify", "--from-file", "log.jsonl", "--json").document
    assert sum(chain["entries"] for chain in chains) == done["entries"]
    assert len(chains) == done["chains"] == 2
    assert chains[0]["anchored_to"] == 2
    text = alone("oplog", "verify", "--from-file", "log.jsonl").out
    assert "chains: intact" in text
    assert "owner's key: ed25519:" in text
    assert sorted(path.name for path in elsewhere.iterdir()) == [".env", "log.jsonl"]


def test_an_export_that_was_changed_damaged_or_is_none_ends_so(vox: VoxCommand, node: RunningNode) -> None:
    assert vox("oplog", "export", "log").code == 0
    again = vox("oplog", "export", "log")
    assert (again.code, "log exists already" in again.error) == (1, True)
    log = vox.folder / "log"
    content = log.read_bytes()
    log.write_bytes(content.replace(b'"text":"one"', b'"text":"two"'))
    changed = vox("oplog", "verify", "--from-file", "log")
    assert changed.code == 1
    assert f"broken: {node.node_id}, entry 2" in changed.out
    log.write_bytes(content[:-100])
    cut = vox("oplog", "verify", "--from-file", "log")
    assert (cut.code, "log, line 5: " in cut.error) == (1, True)
    log.write_text("Dear log,\n")
    none = vox("oplog", "verify", "--from-file", "log")
    assert (none.code, "not an export of a log" in none.error) == (2, True)


def test_an_anchor_shows_that_a_chain_was_cut_off(vox: VoxCommand, node: RunningNode) -> None:
    made = vox("oplog", "anchor", "--json").document
    assert (made["node_id"], made["kind"]) == (f"{node.node_id}/cli", "Anchor")
    assert made["payload"]["heads"][node.node_id][0] == 4
    with database(vox) as connection:
        connection.execute("DELETE FROM agent_oplog WHERE node_id = ? AND seq = 4", (node.node_id,))
    ended = vox("oplog", "verify")
    assert ended.code == 1
    assert f"anchor {made['op_id']} of {made['node_id']} recorded entry 4" in ended.out


def test_what_an_op_waits_for_is_reported(vox: VoxCommand) -> None:
    with running_node(vox) as node:
        first = node.note("first")
        waiting = node.note(f"second after {_ABSENT}")
        (shown,) = vox("oplog", "waiting", "--json").document
        assert (shown["op_id"], shown["state"]) == (waiting, "waiting")
        assert shown["waits_for"] == [{"op_id": _ABSENT, "standing": "absent"}]
        assert f"{_ABSENT} (absent)" in vox("oplog", "waiting", waiting).out
        applied = vox("oplog", "waiting", first, "--json").document
        assert (applied["state"], applied["waits_for"]) == ("applied", [])
        unknown = vox("oplog", "waiting", _ABSENT)
        assert (unknown.code, "not found in the log" in unknown.error) == (1, True)


def test_commands_that_only_read_make_no_key(vox: VoxCommand) -> None:
    for command in ("nodes", "roles show", "oplog tail", "oplog verify", "oplog waiting", "oplog export e"):
        assert vox(*command.split()).code == 0
    assert vox("doctor").code == 0
    assert not (vox.folder / ".vox/slots").exists()


def test_a_key_that_others_can_read_is_refused_and_the_doctor_says_what_to_do(
    vox: VoxCommand, node: RunningNode
) -> None:
    found = {each["check"]: each for each in vox("doctor", "--json").document}
    assert (found["identity"]["state"], found["identity"]["found"]) == ("ok", node.node_id)
    key = Path(".vox/slots/1/key.pem")
    (vox.folder / key).chmod(0o640)
    ended = vox("oplog", "anchor")
    assert ended.code == 2
    assert f"chmod 600 {key}" in ended.error
    examined = vox("doctor", "--json")
    assert examined.code == 1
    found = {each["check"]: each for each in examined.document}
    assert (found["identity"]["state"], found["identity"]["advice"]) == ("fail", f"chmod 600 {key}")
    assert vox("oplog", "verify").code == 0  # reading needs no key


def test_a_command_with_another_key_is_refused(vox: VoxCommand, node: RunningNode) -> None:
    (vox.folder / ".vox/slots/1/key.pem").unlink()
    ended = vox("oplog", "anchor")
    assert ended.code == 1
    assert f"nodes rekey {node.node_id}" in ended.error


def test_a_restore_is_logged_and_the_restored_log_verifies(
    vox: VoxCommand, node: RunningNode, server: Server
) -> None:
    assert vox("db", "backup", "b.db").code == 0
    for restored in (vox.at(server), vox.having(VOX_DB_PATH="other.db", VOX_MESH_HOME="elsewhere")):
        done = restored("db", "restore", "b.db", "--json").document
        (op,) = restored("oplog", "tail", "--kind", RESTORE, "--json").document
        assert op["op_id"] == done["op_id"]
        assert op["payload"]["rows"] == done["rows"] > 0
        assert op["payload"]["incarnations_raised"] == done["incarnations_raised"] == 1
        assert len(op["payload"]["fingerprint"]) == 64
        chains = restored("oplog", "verify", "--json")
        assert (chains.code, len(chains.document)) == (0, 2)


def test_a_restore_that_could_not_be_logged_is_shown_all_the_same(vox: VoxCommand, node: RunningNode) -> None:
    assert vox("db", "backup", "b.db").code == 0
    (vox.folder / ".vox/slots/1/key.pem").unlink()
    vox("oplog", "verify")
    stranger = vox.having(VOX_DB_PATH="other.db")
    (vox.folder / ".vox/slots/1/id").write_text(node.node_id)
    ended = stranger("db", "restore", "b.db", "--json")
    assert ended.code == 1
    assert "op_id" not in ended.document
    assert f"nodes rekey {node.node_id}" in ended.err
