"""Read the migrations: numbered files in `sql/migrations/`, each of which brings a database to one version.

A file `NNNN_name.sql` holds statements that end with `;`, applied in order in one transaction. Some comments
are directives:

- `-- if-missing: TABLE.COLUMN` above a statement: run it only if the table exists without that column.
- `-- if: EXPRESSION` above a statement: run it only if the SQL expression is true.
- `-- oldest-code: N` anywhere: code for a version below N can't work with the database from here on. A file
  that creates a trigger needs it, with its own number: code that does not know a trigger refuses it.

All conditions of a file are evaluated before its first statement runs. `NOW_MS` works as in all files of
`sql/`, but needs a table of version 10: earlier files use `RAW_MS`, the database's own clock.
To change the schema, edit `sql/coordination.sql` and add a file with the next number.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from vox_mesh.store.schema.statements import bare, folder, split

_FILE: Final = re.compile(r"(\d{4})_(\w+)\.sql")
_IF: Final = re.compile(r"^-- if: (.+)$", re.MULTILINE)
_IF_MISSING: Final = re.compile(r"^-- if-missing: (\w+)\.(\w+)$", re.MULTILINE)
_OLDEST_CODE: Final = re.compile(r"^-- oldest-code: (\d+)$", re.MULTILINE)
_FIRST_CODE: Final = 1


class SchemaChange(NamedTuple):
    """A statement of a migration, and the SQL expression that must be true for it to run."""

    sql: str
    condition: str | None


class Migration(NamedTuple):
    """One file. `oldest_code` is the oldest version of the code that works with the database after it."""

    number: int
    name: str
    changes: tuple[SchemaChange, ...]
    oldest_code: int

    @property
    def file_name(self) -> str:
        """Return the file's name without its extension."""
        return f"{self.number:04d}_{self.name}"

    @property
    def conditions(self) -> tuple[str, ...]:
        """Return the distinct conditions of its changes."""
        return tuple(dict.fromkeys(each.condition for each in self.changes if each.condition is not None))


@cache
def newest_version() -> int:
    """Return the highest number among the files: the version of `sql/coordination.sql`."""
    return max(_files())


@cache
def migrations() -> tuple[Migration, ...]:
    """Return all migrations, in the order of their numbers."""
    return tuple(parse(path.name, path.read_text()) for _, path in sorted(_files().items()))


def oldest_code(version: int) -> int:
    """Return the oldest version of the code that works with a database of this version."""
    return max((each.oldest_code for each in migrations() if each.number <= version), default=_FIRST_CODE)


def parse(file_name: str, text: str) -> Migration:
    """Read one file."""
    named = _FILE.fullmatch(file_name)
    if named is None:
        raise ValueError(f"a migration must be named NNNN_name.sql, got {file_name}")
    changes = tuple(SchemaChange(bare(statement), _condition(statement)) for statement in split(text))
    needed = [int(number) for number in _OLDEST_CODE.findall(text)]
    return Migration(int(named[1]), named[2], changes, max(needed, default=_FIRST_CODE))


def _condition(statement: str) -> str | None:
    conditions = [bare(expression) for expression in _IF.findall(statement)]
    conditions += [_is_missing(table, column) for table, column in _IF_MISSING.findall(statement)]
    return " AND ".join(f"({each})" for each in conditions) or None


def _is_missing(table: str, column: str) -> str:
    # A missing table has no columns: NULL, which is not true.
    return f"(SELECT max(name = '{column}') FROM pragma_table_info('{table}')) = 0"


def _files() -> dict[int, Path]:
    found: dict[int, Path] = {}
    for path in (folder() / "migrations").glob("*.sql"):
        named = _FILE.fullmatch(path.name)
        if named is None or int(named[1]) in found:
            raise ValueError(
                f"a migration must have a number of its own and be named NNNN_name.sql, got {path.name}"
            )
        found[int(named[1])] = path
    return found
