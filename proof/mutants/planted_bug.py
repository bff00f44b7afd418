"""A planted bug: a change of code or SQL in memory, in a process that runs only to be caught."""

from __future__ import annotations

import gc
import inspect
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any, Protocol

from vox_mesh.store.schema import statements
from vox_mesh.store.script import Shape


class Instrument(StrEnum):
    """The instrument with which a bug is found."""

    SIMULATION = "simulation"
    FILE = "chaos on a file"
    SERVER = "chaos on sqld"
    ATTACKS = "the tests of attacks"
    STORE = "the tests of the store"
    STEPS = "the tests of durable steps"
    FRAMEWORKS = "the tests of frameworks"
    HOSTILE = "an attack on a mesh"
    EDITING = "agents that edit"


class PlaceNotFound(Exception):
    """The code that a bug changes is gone: the bug could not be planted."""


class Change(Protocol):
    """One changed place."""

    def changed(self) -> str:
        """Return the changed source. Raise `PlaceNotFound` if the original is not what it was."""

    def make(self) -> None:
        """Apply the change to this process, permanently."""


@dataclass(frozen=True, slots=True)
class Code:
    """A replacement in the source of a function: `vox_mesh.module:Class.method`."""

    place: str
    old: str
    new: str

    def changed(self) -> str:
        """Return the source of the changed function."""
        _, owner, name = self._resolve()
        source = textwrap.dedent(inspect.getsource(_function(vars(owner).get(name), self.place)))
        return _replace(source, self.old, self.new, self.place)

    def make(self) -> None:
        """Replace the function with the changed one."""
        module, owner, name = self._resolve()
        made: dict[str, Any] = {}
        code = compile(self.changed(), module.__file__ or "", "exec", annotations.compiler_flag)
        exec(code, module.__dict__, made)
        setattr(owner, name, made[name])

    def _resolve(self) -> tuple[ModuleType, Any, str]:
        """Return the module, the class or module that owns the function, and its name."""
        module_name, _, qualified = self.place.partition(":")
        module = import_module(module_name)
        *owners, name = qualified.split(".")
        owner: Any = module
        for each in owners:
            owner = getattr(owner, each)
        return module, owner, name


@dataclass(frozen=True, slots=True)
class Sql:
    """A replacement in a named statement of `sql/<noun>.sql`."""

    noun: str
    name: str
    old: str
    new: str

    def changed(self) -> str:
        """Return the changed statement."""
        right, place = statements.named(self.noun).get(self.name, ""), f"{self.noun}.sql: {self.name}"
        return _replace(right, statements.bare(self.old), statements.bare(self.new), place)

    def make(self) -> None:
        """Replace the statement with the changed one."""
        named, changed = statements.named(self.noun), self.changed()
        assert isinstance(named, dict)
        if any(
            named[self.name] in (each.answer, each.single_statement, *each.statements) for each in _shapes()
        ):
            raise PlaceNotFound(f"{self.name} is in use already: plant it before what uses it is loaded")
        named[self.name] = changed


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """A bug, its description, and the checks that must find it."""

    name: str
    description: str
    changes: Sequence[Change]
    found_by: Sequence[str]
    """The checks that should find it, or the tests of its instrument; one of them must."""
    workloads: Sequence[str] = ()
    """The workloads that show it; empty: all."""
    instrument: Instrument = Instrument.SIMULATION
    faults: Sequence[str] = ()
    """The kinds of faults that show it; empty: the default ones."""
    builds: Sequence[str] = ()
    """The two builds of the code that show it, in chaos; empty: this checkout."""

    def plant(self) -> None:
        """Plant the bug in this process. Statements come first: modules load the statements they use."""
        for change in sorted(self.changes, key=lambda each: isinstance(each, Code)):
            change.make()


def _shapes() -> list[Shape]:
    return [each for each in gc.get_objects() if isinstance(each, Shape)]


def _function(found: Any, place: str) -> FunctionType:
    while not isinstance(found, FunctionType):
        for wrapped in ("fget", "func", "__func__", "__wrapped__"):
            if hasattr(found, wrapped):
                found = getattr(found, wrapped)
                break
        else:
            raise PlaceNotFound(f"there is no function {place}")
    return found


def _replace(text: str, old: str, new: str, place: str) -> str:
    if text.count(old) != 1:
        raise PlaceNotFound(f"{place} says {old!r} {text.count(old)} times, not once")
    return text.replace(old, new)
