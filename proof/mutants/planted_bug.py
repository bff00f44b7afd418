"""A planted bug: a change of code or SQL in memory, in a process that is there to be found out."""

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
    """Where a bug shows."""

    SIMULATION = "simulation"
    FILE = "chaos on a file"
    SERVER = "chaos on sqld"


class PlaceNotFound(Exception):
    """The place of a change is gone: the bug would not be there, and nobody would find it."""


class Change(Protocol):
    """One place that is made worse."""

    def changed(self) -> str:
        """What would stand there; `PlaceNotFound`, if the place is not what it was."""

    def make(self) -> None:
        """Change it, in this process and for good."""


@dataclass(frozen=True, slots=True)
class Code:
    """Other words in the source of a function: `vox_mesh.module:Class.method`."""

    place: str
    old: str
    new: str

    def changed(self) -> str:
        """The source of the changed function."""
        _, owner, name = self._resolve()
        source = textwrap.dedent(inspect.getsource(_function(vars(owner).get(name), self.place)))
        return _replace(source, self.old, self.new, self.place)

    def make(self) -> None:
        """Have the changed function in the place of the right one."""
        module, owner, name = self._resolve()
        made: dict[str, Any] = {}
        code = compile(self.changed(), module.__file__ or "", "exec", annotations.compiler_flag)
        exec(code, module.__dict__, made)
        setattr(owner, name, made[name])

    def _resolve(self) -> tuple[ModuleType, Any, str]:
        """The module, the class or again the module in which the function is, and its name."""
        module_name, _, qualified = self.place.partition(":")
        module = import_module(module_name)
        *owners, name = qualified.split(".")
        owner: Any = module
        for each in owners:
            owner = getattr(owner, each)
        return module, owner, name


@dataclass(frozen=True, slots=True)
class Sql:
    """Other words in a named statement of `sql/<noun>.sql`."""

    noun: str
    name: str
    old: str
    new: str

    def changed(self) -> str:
        """The changed statement."""
        right, place = statements.named(self.noun).get(self.name, ""), f"{self.noun}.sql: {self.name}"
        return _replace(right, statements.bare(self.old), statements.bare(self.new), place)

    def make(self) -> None:
        """Have the changed statement in the place of the right one."""
        named, changed = statements.named(self.noun), self.changed()
        assert isinstance(named, dict)
        if any(named[self.name] in (each.answer, each.lone, *each.statements) for each in _shapes()):
            raise PlaceNotFound(f"{self.name} is in use already: plant it before what uses it is loaded")
        named[self.name] = changed


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """A bug, what somebody would say of it, and where it must be found."""

    name: str
    description: str
    changes: Sequence[Change]
    found_by: Sequence[str]
    """The checks that are meant to find it; one of them has to."""
    workloads: Sequence[str] = ()
    """What must be played for it to show; all, if nothing is said."""
    instrument: Instrument = Instrument.SIMULATION
    faults: Sequence[str] = ()
    """What must go wrong for it to show; the usual, if nothing is said."""

    def plant(self) -> None:
        """Have the bug in this process. Statements are changed first: code is loaded with what it uses."""
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
