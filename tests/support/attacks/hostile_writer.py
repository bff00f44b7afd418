"""A hostile writer of the database: it runs any SQL, past the mesh, and has no key of a node."""

from __future__ import annotations

import json
import sqlite3
import urllib.request
from contextlib import closing
from typing import Any, Final

from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.oplog.tampering import hashed, stranger
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.hlc import Hlc
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.messages.records import WIRE_FIELDS, Message
from vox_mesh.model.oplog.chain import NO_HASH, LogEntry, signed_text
from vox_mesh.store import new_key

REPOSITORY: Final = "default"
_TIMEOUT_S: Final = 10.0
_TYPES: Final = {int: "integer", str: "text", type(None): "null"}


class HostileWriter:
    """Writes to the database of a mesh: to its file, or to its server with the token of any node."""

    def __init__(self, shared_mesh: SharedMesh) -> None:
        self._town = shared_mesh
        self.mesh = (shared_mesh.scope_id, REPOSITORY)
        self.key: SigningKey = stranger()
        """The only key that it can sign with."""

    def run(self, sql: str, *values: Any) -> list[list[Any]]:
        """Run a statement, `?1` and `?2` being the mesh; return its rows."""
        if self._town.server is None:
            return self._run_on_file(sql, (*self.mesh, *values))
        return self._run_on_server(sql, (*self.mesh, *values))

    def _run_on_file(self, sql: str, values: tuple[Any, ...]) -> list[list[Any]]:
        numbered = {str(number): value for number, value in enumerate(values, 1)}
        with closing(sqlite3.connect(self._town.folder / "shared.db", timeout=_TIMEOUT_S)) as database:
            rows = [list(row) for row in database.execute(sql, numbered)]
            database.commit()
        return rows

    def _run_on_server(self, sql: str, values: tuple[Any, ...]) -> list[list[Any]]:
        server = self._town.server
        assert server is not None
        arguments = [{"type": _TYPES[type(each)], **_encoded(each)} for each in values]
        body = {"requests": [{"type": "execute", "stmt": {"sql": sql, "args": arguments}}]}
        headers = {"authorization": f"Bearer {server.token}", "content-type": "application/json"}
        request = urllib.request.Request(f"{server.url}/v2/pipeline", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            (result,) = json.load(answer)["results"]
        assert result["type"] == "ok", result
        return [[_decoded(cell) for cell in row] for row in result["response"]["result"]["rows"]]

    def insert(self, table: str, **columns: Any) -> None:
        """Insert a row of this mesh."""
        places = ", ".join(f"?{place}" for place in range(3, 3 + len(columns)))
        names = ", ".join(columns)
        sql = f"INSERT INTO {table} (scope_id, repository_id, {names}) VALUES (?1, ?2, {places})"
        self.run(sql, *columns.values())

    def plant_key(self, chain: str, from_seq: int = 0) -> None:
        """Record its own key for a chain."""
        self.insert("node_keys", node_id=chain, from_seq=from_seq, public_key=self.key.public)

    def plant_message(self, like: Message, body: Any) -> None:
        """Insert a message with another body, in the name of the same sender."""
        forged = like._replace(
            message_uuid=new_key(),
            payload=canonical(body),
            hlc=str(Hlc.parse(like.hlc)._replace(logical=77)),
        )
        forged = forged._replace(signature=self.key.sign(forged.signed_text(*self.mesh)))
        self.insert("a2a_messages", **dict(zip(WIRE_FIELDS, forged, strict=False)))

    def plant_entry(self, chain: str, kind: str, payload: Any, **columns: Any) -> LogEntry:
        """Append an entry that fits the end of a chain, signed with its own key."""
        rows = self.run(
            "SELECT seq, hash, hlc FROM agent_oplog "
            "WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 ORDER BY seq DESC LIMIT 1",
            chain,
        )
        seq, prev, hlc = rows[0] if rows else (0, NO_HASH, str(Hlc(1, 0, chain)))
        time = Hlc.parse(hlc)
        entry = LogEntry(
            id=0,
            node_id=chain,
            seq=seq + 1,
            op_id=new_key(),
            kind=kind,
            hlc=str(time._replace(wall_ms=time.wall_ms + 1)),
            causal_deps="[]",
            payload=canonical(payload),
            repository_id=REPOSITORY,
            prev=prev,
            hash="",
            signature=None,
            accepted=1,
            reason=None,
            result=None,
        )
        entry = hashed(entry._replace(**columns))
        entry = entry._replace(signature=self.key.sign(signed_text(entry.hash, self.mesh[0])))
        row = entry._asdict()
        del row["repository_id"]
        if not row["id"]:
            del row["id"]
        self.insert("agent_oplog", **row)
        return entry

    def mark_refused(self, *kinds: str) -> None:
        """Change the verdict on all ops of these kinds: they were refused."""
        self._mark(kinds, "accepted = 0, reason = 'illegal_transition', result = NULL")

    def mark_accepted(self, *kinds: str) -> None:
        """Change the verdict on all ops of these kinds: they were accepted."""
        self._mark(kinds, "accepted = 1, reason = NULL, result = NULL")

    def _mark(self, kinds: tuple[str, ...], verdict: str) -> None:
        of_kinds = "scope_id = ?1 AND repository_id = ?2 AND kind IN (SELECT value FROM json_each(?3))"
        self.run(f"UPDATE agent_oplog SET {verdict} WHERE {of_kinds}", json.dumps(kinds))


def _encoded(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    return {"value": str(value)}  # integers travel as text, too


def _decoded(cell: dict[str, Any]) -> Any:
    if cell["type"] == "null":
        return None
    return int(cell["value"]) if cell["type"] == "integer" else cell["value"]
