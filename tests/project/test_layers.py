"""The layers: import direction, cycles, purity of the model, and the size of files and folders."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "vox_mesh"
MODULES = sorted(PACKAGE.rglob("*.py"))

_LAYERS: Final = (
    "errors",
    "model",
    "observability",
    "settings",
    "store",
    "contrib",
    "nodes",
    "oplog",
    "coordination",
    "heartbeat",
    "locks",
    "occ",
    "messages",
    "rhythm",
    "jobs",
    "runtime",
    "views",
    "client",
    "hosts",
    "http",
    "node",
    "mesh",
    "app",
    "",
    "cli",
    "sync",
    "integrations",
    "testing",
)
"""From the bottom to the top, by the first part of a module's name; the empty name is the package itself. A
module may import from its own layer and from those below it."""

_MAY_USE: Final = {
    "model": {"errors"},
    "observability": {"errors", "model"},
    "store": {"errors", "model", "observability"},
    "contrib": {"errors", "model", "store"},
    "nodes": {"errors", "model", "store", "observability"},
    "views": set(_LAYERS[: _LAYERS.index("runtime") + 1]) - {"settings", "contrib"},
    "client": {"errors", "model", "nodes", "jobs"},
    "sync": {
        "app",
        "client",
        "errors",
        "jobs",
        "mesh",
        "model",
        "nodes",
        "observability",
        "runtime",
        "settings",
    },
}
"""Layers that may import less than all that is below them."""

_UPWARDS: Final = {
    ("mesh", "node"): "`Mesh.open` opens a node, and a node is a mesh that runs",
    ("node", "mesh"): "the same",
}
"""Two layers that know each other, and why."""

_CYCLES: Final = ({"vox_mesh.mesh", "vox_mesh.node"},)
"""Modules that import each other, lazily or for their types. None is to be added."""

_DEPRECATED: Final = PACKAGE / "coordination"
_MAX_LINES: Final = 500
_MAX_ENTRIES: Final = 24
_IMPURE: Final = frozenset(
    (
        "asyncio",
        "io",
        "os",
        "pathlib",
        "random",
        "secrets",
        "shutil",
        "socket",
        "subprocess",
        "threading",
        "time",
    )
)
_CLOCK_CALLS: Final = {"datetime": {"now", "today", "utcnow"}}

_SQL = re.compile(
    r"\b(SELECT\s.*\S|INSERT\s+INTO|DELETE\s+FROM|UPDATE\s+\w+\s+SET|(CREATE|DROP|ALTER)\s+TABLE|PRAGMA\s)\b",
    re.IGNORECASE | re.DOTALL,
)


def name_of(path: Path) -> str:
    """Return a module's dotted name."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def layer_of(module: str) -> str:
    """Return the first part of a module's name inside the package."""
    return (module + ".").split(".")[1]


NAMES: Final = frozenset(name_of(path) for path in MODULES)


@cache
def nodes_of(path: Path) -> Sequence[ast.AST]:
    """Return all nodes of a module's syntax tree; to walk it takes longer than to look at them."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the modules of the package that these nodes import."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            if module.split(".")[0] == "vox_mesh":
                for alias in node.names:
                    full = f"{module}.{alias.name}"
                    yield full if full in NAMES else module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "vox_mesh")


def may_import(layer: str, other: str) -> bool:
    """Return whether a module of one layer may import from another."""
    if layer == other or (layer, other) in _UPWARDS:
        return True
    below = _LAYERS[: _LAYERS.index(layer)]
    return other in below and other in _MAY_USE.get(layer, set(below))


def test_every_module_is_in_a_layer() -> None:
    assert {layer_of(name) for name in NAMES} == set(_LAYERS)


def test_a_module_imports_only_from_the_layers_below_it() -> None:
    wrong = {
        f"{name_of(path)} imports {other}"
        for path in MODULES
        for other in imports(nodes_of(path))
        if not may_import(layer_of(name_of(path)), layer_of(other))
    }
    assert wrong == set()


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    known = {module: index for index, cycle in enumerate(_CYCLES) for module in cycle}
    graph: dict[str, set[str]] = {}
    for path in MODULES:
        name = name_of(path)
        graph[name] = {
            other
            for other in imports(nodes_of(path))
            if other != name and (name not in known or known[name] != known.get(other))
        }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules import each other: {' -> '.join(error.args[1])}")


def test_the_model_is_pure() -> None:
    impure = {
        f"{name_of(path)} imports {module}"
        for path in MODULES
        if layer_of(name_of(path)) == "model"
        for module in _outside(nodes_of(path))
        if module.split(".")[0] in _IMPURE
    }
    assert impure == set()


def _outside(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_the_model_asks_no_clock() -> None:
    asked = [
        f"{name_of(path)}, line {node.lineno}"
        for path in MODULES
        if layer_of(name_of(path)) == "model"
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.attr in _CLOCK_CALLS.get(node.value.id, ())
    ]
    assert asked == []


def test_no_file_is_too_long() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {name: length for name, length in lengths.items() if length > _MAX_LINES} == {}


def test_no_folder_is_crowded() -> None:
    entries = {path if path.name != "__init__.py" else path.parent for path in MODULES} - {
        PACKAGE,
        _DEPRECATED,
    }
    sizes = Counter(str(entry.parent.relative_to(PACKAGE.parent)) for entry in entries)
    del sizes[PACKAGE.name]  # its entries are the layers, which are listed above
    assert {name: size for name, size in sizes.items() if size > _MAX_ENTRIES} == {}


def test_a_face_knows_no_sql() -> None:
    found = [
        f"{name_of(path)}, line {node.lineno}: {node.value!r}"
        for path in MODULES
        if layer_of(name_of(path)) in ("cli", "hosts", "http")
        for node in nodes_of(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _SQL.search(node.value)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("code", "modules"),
    [
        ("import vox_mesh", {"vox_mesh"}),
        ("import vox_mesh.store.engines.file as f", {"vox_mesh.store.engines.file"}),
        ("from vox_mesh import Store", {"vox_mesh"}),
        ("from vox_mesh import store", {"vox_mesh.store"}),
        ("def f():\n    from vox_mesh.cli.app import run", {"vox_mesh.cli.app"}),
        ("import asyncio, vox_meshes", set()),
    ],
)
def test_imports_are_seen_in_all_their_forms(code: str, modules: set[str]) -> None:
    assert set(imports(ast.walk(ast.parse(code)))) == modules


def test_an_import_upwards_is_seen() -> None:
    assert not may_import("store", "locks")
    assert not may_import("messages", "rhythm")
    assert not may_import("model", "store")
    assert may_import("jobs", "messages")


@pytest.mark.parametrize(
    "text", ["SELECT 1 FROM t", "insert into t values (1)", "PRAGMA journal_mode", "update t set a=1"]
)
def test_sql_is_seen_when_it_is_there(text: str) -> None:
    assert _SQL.search(text)
