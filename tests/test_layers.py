"""The layers: who may import whom, how long a file may be, and where SQL may stand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "vox_mesh"
MODULES = sorted(PACKAGE.rglob("*.py"))

_PLANES = ("messages", "jobs", "rhythm")
_BELOW_ROOT = ("errors", "model", "store", "coordination", *_PLANES)
_ROOT = (*_BELOW_ROOT, "settings", "opening", "planes", "mesh", "node", "supervisor", "health", "loop")
_FACES_USE = (*_BELOW_ROOT, "settings", "planes", "views")
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "base_errors": (),
    "errors": ("base_errors",),
    "loop": (),
    "model": ("errors", "model"),
    "store": ("errors", "model", "store"),
    "coordination": ("errors", "model", "store", "coordination"),
    **dict.fromkeys(_PLANES, _BELOW_ROOT),
    "settings": ("errors", "model"),
    "opening": (*_BELOW_ROOT, "settings"),
    "planes": _BELOW_ROOT,
    "supervisor": ("errors", "store"),
    "health": (*_BELOW_ROOT, "settings", "supervisor"),
    "views": (*_BELOW_ROOT, "planes", "views"),
    "http": (*_FACES_USE, "http"),
    "mesh": _ROOT,
    "node": (*_ROOT, "http"),
    "": _ROOT,
    "cli": (*_ROOT, "", "views", "top", "cli"),
    "top": (*_ROOT, "", "views", "top", "cli"),
    "sync": (*_ROOT, "sync"),
    "testing": (*_ROOT, "sync", "testing"),
    "demo": (*_ROOT, "", "demo"),
}
"""By the first part of a module's name inside the package; the empty name is the package itself."""

_SQL = re.compile(
    r"\b(SELECT\s.*\S|INSERT\s+INTO|DELETE\s+FROM|UPDATE\s+\w+\s+SET|(CREATE|DROP|ALTER)\s+TABLE|PRAGMA\s)\b",
    re.IGNORECASE | re.DOTALL,
)


def name_of(path: Path) -> str:
    """A module's name as a test id."""
    return str(path.relative_to(PACKAGE))


def layer_of(path: Path) -> str:
    """The first part of the module's name inside the package."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imports(tree: ast.AST) -> Iterator[str]:
    """The layers that a module imports, wherever in it the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            if module == "vox_mesh":
                subpackages = {alias.name for alias in node.names} & set(MAY_IMPORT)
                yield from subpackages or {""}
            elif module.startswith("vox_mesh."):
                yield module.split(".")[1]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "vox_mesh":
                    yield (alias.name + ".").split(".")[1]


def test_there_are_modules_to_look_at() -> None:
    assert {"", "errors", "model", "store", "settings", "mesh"} <= {layer_of(path) for path in MODULES}


def test_a_module_imports_only_from_the_layers_above_it() -> None:
    assert {layer_of(path) for path in MODULES} <= MAY_IMPORT.keys(), "a module is in no layer"
    wrong = {
        name_of(path): found - set(MAY_IMPORT[layer_of(path)])
        for path in MODULES
        if (found := set(imports(ast.parse(path.read_text()))))
    }
    assert {name: layers for name, layers in wrong.items() if layers} == {}, "it must not import from these"


def test_no_file_is_longer_than_five_hundred_lines() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {name: length for name, length in lengths.items() if length > 500} == {}


def test_a_face_knows_no_sql() -> None:
    faces = [path for path in MODULES if layer_of(path) in ("cli", "http", "top")]
    found = [
        f"{name_of(path)}, line {node.lineno}: {node.value!r}"
        for path in faces
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _SQL.search(node.value)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("code", "layers"),
    [
        ("import vox_mesh", {""}),
        ("import vox_mesh.store.engines.file as f", {"store"}),
        ("from vox_mesh import Store", {""}),
        ("from vox_mesh import store", {"store"}),
        ("def f():\n    from vox_mesh.cli.app import run", {"cli"}),
        ("import asyncio, vox_meshes", set()),
    ],
)
def test_imports_are_seen_in_all_their_forms(code: str, layers: set[str]) -> None:
    assert set(imports(ast.parse(code))) == layers


@pytest.mark.parametrize(
    "text", ["SELECT 1 FROM t", "insert into t values (1)", "PRAGMA journal_mode", "update t set a=1"]
)
def test_sql_is_seen_when_it_is_there(text: str) -> None:
    assert _SQL.search(text)
