"""Generate `vox_mesh/sync/__init__.pyi`: the types of the blocking mesh, derived from those of the async one.

Run `python -m tools.sync_stub` after a public signature was changed; a test fails until then.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
import re
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from vox_mesh import Mesh
from vox_mesh.client import AgentClient
from vox_mesh.errors import MeshError
from vox_mesh.sync.blocking import is_service, lives_in_loop
from vox_mesh.testing.harness import MeshHarness

STUB: Final = Path(__file__).resolve().parent.parent / "vox_mesh" / "sync" / "__init__.pyi"

_HEAD: Final = '''"""Made by `python -m tools.sync_stub`: change the async mesh instead."""

# ruff: noqa: A002

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

from vox_mesh.nodes.clock import Dependencies
from vox_mesh.settings import Settings
from vox_mesh.sync.typed_jobs import BlockingJobDecorator
'''
_OURS: Final = {
    "AbstractAsyncContextManager": "AbstractContextManager",
    "AsyncGenerator": "Generator",
    "AsyncIterator": "Iterator",
    "JobDecorator": "BlockingJobDecorator",
}
_MARKS: Final = {"property": "property", "cached_property": "property", "staticmethod": "staticmethod"}
_FUNCTIONS: Final = """
def opened(manager: Callable[[], AbstractAsyncContextManager[Any]]) -> AbstractContextManager[Any]: ...
def timeout(seconds: Duration | None) -> AbstractContextManager[None]: ...
"""
_DEPRECATED: Final = """
Town = MeshHarness
TownClock = ManualClock
"""
_APP: Final = """
class MeshApp:
    handlers: HandlerSet
    def job(
        self,
        kind: str,
        *,
        concurrency: int | None = ...,
        max_running: int | None = ...,
        **options: Unpack[JobOptions]
    ) -> BlockingJobDecorator: ...
    def open(
        self, settings: Settings | None = ..., dependencies: Dependencies | None = ...
    ) -> AbstractContextManager[MeshNode]: ...
    def using(self, mesh: Mesh) -> AbstractContextManager[None]: ...
"""
_OPENING: Final = """
    @staticmethod
    def open(
        settings: Settings | None = ..., dependencies: Dependencies | None = ...
    ) -> AbstractContextManager[MeshNode]: ...
    @staticmethod
    def open_command(
        settings: Settings, dependencies: Dependencies | None = ...
    ) -> AbstractContextManager[Mesh]: ...
"""

_OPENING_CLIENT: Final = """
    @staticmethod
    def open(
        address: str, agent: str, *, key_file: Path | None = ..., bearer: str | None = ...
    ) -> AbstractContextManager[AgentClient]: ...
"""
_OPENINGS: Final = {Mesh: _OPENING, AgentClient: _OPENING_CLIENT}


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(import_module(module)))


@cache
def _imports(module: str) -> dict[str, tuple[str, str] | None]:
    """Where a module has its names from: a module and a name there, or `None` for a whole module."""
    found: dict[str, tuple[str, str] | None] = {}
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= dict.fromkeys(alias.asname or alias.name for alias in node.names)
    return found


class Stub:
    """The stub in the making."""

    def __init__(self) -> None:
        self.imports: set[str] = set()
        self.classes: dict[type, str] = {}

    def add(self, service: Any) -> None:
        """Describe an object of the loop, and all that it leads to."""
        kinds = [each for each in type(service).__mro__ if lives_in_loop(each)]
        for kind, base in zip(kinds, [*kinds[1:], None], strict=True):
            if kind not in self.classes:
                self.classes[kind] = ""
                self.classes[kind] = self._class(kind, base, service)

    def _class(self, kind: type, base: type | None, service: Any) -> str:
        inherited = () if base is None else base.__mro__
        lines: dict[str, str] = {}
        for each in reversed(kind.__mro__):
            if each not in inherited and each.__module__.startswith("vox_mesh."):
                lines |= self._members(each, service)
        head = f"class {kind.__name__}:" if base is None else f"class {kind.__name__}({base.__name__}):"
        opening = _OPENINGS.get(kind, "")
        return "\n".join(("", head, "".join(lines.values()) + opening or "    ..."))

    def _members(self, kind: type, service: Any) -> dict[str, str]:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
        assert isinstance(tree, ast.ClassDef)
        lines: dict[str, str] = {}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if node.name == "__init__":
                    lines |= dict(self._attributes(node, kind, service))
                elif not node.name.startswith("_") and not _is_left_out(node):
                    lines[node.name] = self._function(node, kind, service)
        return lines

    # --- members ---------------------------------------------------------------------------------

    def _attributes(self, init: Any, kind: type, service: Any) -> Iterator[tuple[str, str]]:
        """What the constructor sets."""
        given = {each.arg: each.annotation for each in (*init.args.args, *init.args.kwonlyargs)}
        for target, assigned, annotation in _assignments(init):
            name, value = target.attr, getattr(service, target.attr, None)
            if name.startswith("_") or ast.unparse(target.value) != "self":
                continue
            if value is None and annotation is None:
                continue  # its type is not known, and nothing of it can be called
            if annotation is not None and "Final" in ast.unparse(annotation):
                annotation = annotation.slice if isinstance(annotation, ast.Subscript) else None
            if isinstance(assigned, ast.Name):
                annotation = annotation or given.get(assigned.id)
            if annotation is None and inspect.isroutine(value):
                continue  # a function, of a type that is not known
            if is_service(value):
                self.add(value)
                shown = type(value).__name__
            elif annotation is not None:
                shown = self._type(annotation, kind.__module__)
            else:
                shown = self._name(type(value).__name__, type(value).__module__)
            yield name, f"    {name}: {shown}\n"

    def _function(self, node: Any, kind: type, service: Any) -> str:
        decorators = _decorators(node)
        if "property" in decorators or "cached_property" in decorators:
            # Some can be asked only while they are in use, and some are deprecated.
            with suppress(MeshError), warnings.catch_warnings(action="ignore", category=DeprecationWarning):
                value = getattr(service, node.name)
                if is_service(value):
                    self.add(value)
        for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg):
            self._typed(each, kind)
        self._typed(node.args.kwarg, kind)
        node.args.defaults = [ast.Constant(...) for _ in node.args.defaults]
        node.args.kw_defaults = [each and ast.Constant(...) for each in node.args.kw_defaults]
        returned = self._returned(node.returns, kind.__module__)
        theirs, bracket, item = returned.partition("[")
        if "asynccontextmanager" in decorators:
            returned = f"AbstractContextManager[{item}"
        elif theirs in _OURS:
            returned = _OURS[theirs] + bracket + item
        if theirs == "AsyncGenerator":
            returned = returned.removesuffix("]") + ", None]"
        marks = "".join(f"    @{mark}\n" for each in decorators if (mark := _MARKS.get(each)))
        return f"{marks}    def {node.name}({ast.unparse(node.args)}) -> {returned}: ...\n"

    def _returned(self, annotation: ast.expr, module: str) -> str:
        """What a function gives: an object of the loop that is a block of its own is entered by `with`."""
        text = self._type(annotation, module)
        for name in {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}:
            where, real = _imports(module).get(name) or (module, name)
            kind = getattr(import_module(where), real, None) if where.startswith("vox_mesh") else None
            if isinstance(kind, type) and lives_in_loop(kind) and hasattr(kind, "__aenter__"):
                text = re.sub(rf"\b{name}\b", f"AbstractContextManager[{name}]", text)
        return text

    def _typed(self, argument: ast.arg | None, kind: type) -> None:
        if argument is not None and argument.annotation is not None:
            argument.annotation = ast.Name(self._type(argument.annotation, kind.__module__))

    # --- names -----------------------------------------------------------------------------------

    def _type(self, annotation: ast.expr, module: str) -> str:
        """An annotation of a module, with its names imported."""
        for node in ast.walk(annotation):
            if isinstance(node, ast.Name):
                self._name(node.id, module)
        return ast.unparse(annotation)

    def _name(self, name: str, module: str) -> str:
        """Have a name of a module in the stub."""
        if hasattr(builtins, name):
            return name
        while name in _imports(module):
            found = _imports(module)[name]
            if found is None:
                self.imports.add(f"import {name}")
                return name
            module, name = found
            if not module.startswith("vox_mesh"):
                break
        self.imports.add(f"from {module} import {name}")
        return name

    @property
    def text(self) -> str:
        """The stub, before it is put in order."""
        ours = {kind.__name__ for kind in self.classes}
        imports = [each for each in sorted(self.imports) if each.split()[-1] not in ours]
        classes = (text for text in self.classes.values() if text)
        return "\n".join((_HEAD, *imports, _FUNCTIONS, *classes, _APP, _DEPRECATED))


def _assignments(init: Any) -> Iterator[tuple[ast.Attribute, Any, Any]]:
    """Each attribute that a constructor sets, with what it is set to and its annotation."""
    for node in ast.walk(init):
        pairs: list[tuple[Any, Any]]
        if isinstance(node, ast.AnnAssign):
            pairs = [(node.target, node.value)]
        elif isinstance(node, ast.Assign):
            first, value = node.targets[0], node.value
            pairs = [(first, value)]
            if isinstance(first, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = [*zip(first.elts, value.elts, strict=True)]
        else:
            continue
        for target, value in pairs:
            if isinstance(target, ast.Attribute):
                yield target, value, getattr(node, "annotation", None)


def _is_left_out(node: Any) -> bool:
    return any(each == "classmethod" or each.endswith(".setter") for each in _decorators(node))


def _decorators(node: Any) -> list[str]:
    return [ast.unparse(each) for each in node.decorator_list]


def written() -> str:
    """The stub as it should be."""

    async def described() -> str:
        stub = Stub()
        async with MeshHarness() as harness:
            stub.add(harness)
            node = await harness.node()
            stub.add(node)
            phrase = node.rhythm.phrase(task="any")
            stub.add(phrase)
            stub.add(phrase.work())
            stub.add(AgentClient("unix:/agents.sock", "any"))
        return stub.text

    text = asyncio.run(described())
    for command in (["check", "--fix", "--select", "A,F401,F811,I,RUF100,UP043"], ["format"]):
        text = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", str(STUB), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=STUB.parent,
        ).stdout
    return text


if __name__ == "__main__":
    STUB.write_text(written())
