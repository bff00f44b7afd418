"""JSON Schemas of the documents that leave a mesh: files of the package, read when they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import orjson

from vox_mesh.errors import NotKnown

_FOLDER: Final = Path(__file__).resolve().parents[1] / "schemas"
_SUFFIX: Final = ".schema.json"


@dataclass(frozen=True)
class SchemaView:
    """A schema in a list."""

    name: str
    title: str
    description: str


def list_schemas() -> list[SchemaView]:
    """Return all schemas, by name."""
    names = sorted(path.name.removesuffix(_SUFFIX) for path in _FOLDER.glob(f"*{_SUFFIX}"))
    schemas = {name: _read(name) for name in names}
    return [SchemaView(name, each["title"], each["description"]) for name, each in schemas.items()]


def find_schema(name: str) -> dict[str, Any]:
    """Return the schema of this name. Raises `NotKnown` if there is none."""
    if name not in {each.name for each in list_schemas()}:
        raise NotKnown(f"schema {name!r} not found", hint="see GET /v1/schemas")
    return _read(name)


@cache
def _read(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = orjson.loads((_FOLDER / f"{name}{_SUFFIX}").read_bytes())
    return schema
