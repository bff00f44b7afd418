"""The database as a hostile writer has it: any SQL, past the mesh, with the token of a node or its file."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.sqld import Server

_TIMEOUT_S: Final = 10.0
_COLUMNS: Final = """
    SELECT t.name AS [table], c.name, c.type, c.pk, EXISTS (
        SELECT 1 FROM pragma_index_list(t.name) AS l, pragma_index_info(l.name) AS i
        WHERE l.[unique] AND i.name = c.name
    ) AS is_unique
    FROM sqlite_schema AS t, pragma_table_info(t.name) AS c
    WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite%' AND t.name NOT LIKE 'libsql%' ORDER BY t.name, c.cid
"""
_SINGLETON: Final = 7
"""The columns of `database_clock`, whose id is always 1."""
MESH_COLUMNS: Final = ("scope_id", "repository_id")

Row = dict[str, Any]


class StatementRefused(Exception):
    """The database refused a statement: a constraint, a lock, a limit."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the schema."""

    name: str
    columns: tuple[str, ...]
    """All but a generated row id."""
    types: dict[str, str]
    names: tuple[str, ...]
    """Text columns that identify a row, apart from its mesh."""

    @property
    def is_of_mesh(self) -> bool:
        """Whether its rows concern the mesh as a whole, so that no row is the attacker's alone."""
        return not self.names or self.name == "clock_witnesses"


class HostileDatabase:
    """Runs statements on the database of a mesh."""

    def __init__(self, target: Path | Server) -> None:
        self._target = target

    async def run(self, sql: str, *values: Any) -> list[Row]:
        """Run a statement and return its rows. Raise `StatementRefused` if it fails."""
        run = self._on_file if isinstance(self._target, Path) else self._on_server
        return await asyncio.to_thread(run, sql, values)

    async def tables(self) -> list[Table]:
        """Return every table, as the schema has it now."""
        columns: dict[str, list[Row]] = {}
        for row in await self.run(_COLUMNS):
            columns.setdefault(row["table"], []).append(row)
        return [_table(name, found) for name, found in columns.items()]

    def _on_file(self, sql: str, values: Sequence[Any]) -> list[Row]:
        assert isinstance(self._target, Path)
        try:
            with closing(sqlite3.connect(self._target, timeout=_TIMEOUT_S)) as database, database:
                database.row_factory = sqlite3.Row
                return [dict(row) for row in database.execute(sql, values)]
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise StatementRefused(str(error)) from error

    def _on_server(self, sql: str, values: Sequence[Any]) -> list[Row]:
        assert isinstance(self._target, Server)
        statement = {"sql": sql, "args": [_encoded(each) for each in values]}
        body = json.dumps({"requests": [{"type": "execute", "stmt": statement}]}).encode()
        headers = {"authorization": f"Bearer {self._target.token}", "content-type": "application/json"}
        request = urllib.request.Request(f"{self._target.url}/v2/pipeline", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                (result,) = json.load(answer)["results"]
        except (urllib.error.URLError, OSError, ValueError) as error:
            raise StatementRefused(str(error)) from error
        if result["type"] != "ok":
            raise StatementRefused(result["error"]["message"])
        found = result["response"]["result"]
        names = [each["name"] for each in found["cols"]]
        return [dict(zip(names, map(_decoded, row), strict=True)) for row in found["rows"]]


def _table(name: str, columns: Sequence[Row]) -> Table:
    is_rowid = [each["name"] for each in columns if each["pk"]] == ["id"] and len(columns) > _SINGLETON
    kept = [each for each in columns if not (is_rowid and each["name"] == "id")]
    texts = [each["name"] for each in kept if each["type"] == "TEXT" and (each["pk"] or each["is_unique"])]
    return Table(
        name,
        tuple(each["name"] for each in kept),
        {each["name"]: each["type"] for each in kept},
        tuple(each for each in texts if each not in MESH_COLUMNS),
    )


def _encoded(value: Any) -> dict[str, Any]:
    match value:
        case None:
            return {"type": "null"}
        case bytes():
            return {"type": "blob", "base64": base64.b64encode(value).decode()}
        case int():
            return {"type": "integer", "value": str(value)}
        case float():
            return {"type": "float", "value": value}
        case _:
            return {"type": "text", "value": value}


def _decoded(cell: dict[str, Any]) -> Any:
    match cell["type"]:
        case "null":
            return None
        case "blob":
            return base64.b64decode(cell["base64"] + "==")
        case "integer":
            return int(cell["value"])
        case _:
            return cell["value"]
