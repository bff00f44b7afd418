"""The hostile writer: it inserts and changes rows of every table, with values that no node would write."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from itertools import count
from typing import Any, Final

from proof.history import Recorder
from proof.hostile.database import HostileDatabase, Row, StatementRefused, Table
from proof.hostile.values import ATTACKER, HostileValues

GOOD: Final = "good"
BAIT: Final = "bait"
"""Names with which nodes do honest work, and names that are there for the attacker."""

_REST_S: Final = 0.02
_WRONG: Final = 0.7
_PER_TABLE: Final = 200
"""Rows that the attacker has in a table: then it changes those it has."""


class HostileWriter:
    """Writes at random: rows of its own, or as a vandal any row there is."""

    def __init__(
        self,
        database: HostileDatabase,
        mesh: tuple[str, str],
        rng: random.Random,
        recorder: Recorder,
        *,
        has_wrong_types: bool,
    ) -> None:
        self._has_wrong_types = has_wrong_types
        self._database = database
        self._mesh = mesh
        self._rng = rng
        self._values = HostileValues(rng)
        self._recorder = recorder
        self._numbers = count(100)
        self._inserted: dict[str, int] = {}

    async def insert_all_the_time(self) -> None:
        """Insert rows into all tables, and change them, until cancelled. Leave the rows of others alone."""
        tables = [each for each in await self._database.tables() if not each.is_of_mesh]
        while True:
            for table in self._rng.sample(tables, len(tables)):
                if self._inserted.get(table.name, 0) < _PER_TABLE and self._rng.random() < 0.7:
                    await self._try("insert", table, self._insert(table))
                else:
                    await self._try("update", table, self._change(table, _own_rows(table)))
                await asyncio.sleep(_REST_S)

    async def vandalise(self) -> None:
        """Change and delete any rows of all tables, until cancelled."""
        tables = await self._database.tables()
        while True:
            for table in self._rng.sample(tables, len(tables)):
                roll = self._rng.random()
                if roll < 0.3:
                    await self._try("insert", table, self._insert(table))
                elif roll < 0.97:
                    await self._try("vandalise", table, self._change(table, ""))
                else:
                    await self._try("delete", table, self._delete(table))
                await asyncio.sleep(_REST_S)

    async def _try(self, what: str, table: Table, statement: Any) -> None:
        try:
            await statement
        except StatementRefused as error:
            self._recorder.note("hostile.write", way=what, table=table.name, refused=str(error)[:200])
        else:
            self._recorder.note("hostile.write", way=what, table=table.name, refused="")

    async def _insert(self, table: Table) -> None:
        row = await self._template(table)
        for column in self._rng.choices(table.columns, k=self._rng.randrange(1, 4)):
            row[column] = self._value(table, column)
        row |= self._names(table)
        columns, places = ", ".join(f"[{each}]" for each in row), ", ".join("?" * len(row))
        await self._database.run(f"INSERT INTO {table.name} ({columns}) VALUES ({places})", *row.values())
        self._inserted[table.name] = self._inserted.get(table.name, 0) + 1

    async def _template(self, table: Table) -> Row:
        """Return the values of a real row under other names, or of one that could be real."""
        rows = await self._database.run(f"SELECT * FROM {table.name} ORDER BY random() LIMIT 1")
        if rows and self._rng.random() < 0.8:
            return {name: _renamed(rows[0][name]) for name in table.columns}
        return {
            name: self._values.name() if kind == "TEXT" else self._rng.randrange(10)
            for name, kind in table.types.items()
        }

    def _names(self, table: Table) -> Row:
        names: Row = {}
        for column in table.names:
            is_new = self._rng.random() < 0.7
            names[column] = f"{ATTACKER}-{next(self._numbers)}" if is_new else self._values.name()
        if "scope_id" in table.columns:
            names |= dict(zip(("scope_id", "repository_id"), self._mesh, strict=True))
        return names

    async def _change(self, table: Table, condition: str) -> None:
        free = [each for each in table.columns if each not in (*table.names, "scope_id", "repository_id")]
        column = self._rng.choice(free or table.columns)
        await self._database.run(
            f"UPDATE {table.name} SET [{column}] = ? WHERE {self._one(table, condition)}",
            self._value(table, column),
        )

    def _value(self, table: Table, column: str) -> Any:
        if self._has_wrong_types and self._rng.random() < _WRONG:
            return self._values.wrong_column()
        return self._values.column(table.types[column])

    async def _delete(self, table: Table) -> None:
        await self._database.run(f"DELETE FROM {table.name} WHERE {self._one(table, '')}")

    def _one(self, table: Table, condition: str) -> str:
        """Return a condition that holds for a row or two."""
        columns = ", ".join(f"[{each}]" for each in _identity(table))
        where = f"WHERE {condition}" if condition else ""
        chosen = f"SELECT {columns} FROM {table.name} {where} ORDER BY random() LIMIT 1"
        return f"({columns}) IN ({chosen})"


def _identity(table: Table) -> Sequence[str]:
    return table.names or table.columns[:3]


def _own_rows(table: Table) -> str:
    return f"[{table.names[0]}] LIKE '{ATTACKER}-%'"


def _renamed(value: Any) -> Any:
    """Return a value without the names of honest work: nothing of the attacker's is mistaken for it."""
    return value.replace(GOOD, BAIT) if isinstance(value, str) else value
