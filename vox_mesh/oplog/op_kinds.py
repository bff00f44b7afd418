"""Kinds of op: what may be authored, by whom, and what applying it does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadValue
from vox_mesh.model.jobs.records import INFERENCE, JOB_OPS
from vox_mesh.model.oplog.chain import ANCHOR, SEAL
from vox_mesh.model.oplog.op_names import (
    CHARGE,
    END_PHRASE,
    ENDING_KINDS,
    INTERNAL_KINDS,
    MESH_KINDS,
    RESTORE,
)
from vox_mesh.model.oplog.verification import (
    DESIGNATE,
    OWNER_ONLY,
    REKEY,
    ROUTE,
)
from vox_mesh.store.script import Statement

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


class AuthoredOp(NamedTuple):
    """An op as the functions of its kind see it."""

    op_id: str
    node_id: str
    payload: Any


def _no_effects(_: AuthoredOp) -> Sequence[Statement]:
    return ()


@dataclass(frozen=True, slots=True)
class OpKind:
    """A kind of op.

    `effects` returns the statements that apply an op. They depend on nothing but the op, so that any node can
    apply what another has authored. `derivation`: only the coordinator may author it. `ends_something`: a
    node whose clock is off may author it too. `appendable`: its ops are spooled while the database is
    unreachable; by default, those without effects are, since nothing can refuse them later.
    """

    name: str
    effects: Callable[[AuthoredOp], Sequence[Statement]] = _no_effects
    derivation: bool = False
    ends_something: bool = False
    appendable: bool | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise BadValue(
                f"op kind must be a letter, then up to 63 letters, digits or _.-, got {self.name!r}",
                hint="choose a name such as com.example.deployed",
            )
        if self.appendable and self.needs_role:
            raise BadValue(
                f"op kind {self.name} can't be appendable: only the database knows who may author it",
                hint="drop appendable or derivation",
            )

    @property
    def owner_only(self) -> bool:
        """Return whether only the owner of the mesh may author it."""
        return self.name in OWNER_ONLY

    @property
    def needs_role(self) -> bool:
        """Return whether only the owner of the mesh or the coordinator may author it."""
        return self.derivation or self.owner_only

    @property
    def does_something(self) -> bool:
        """Return whether it has effects or guards."""
        return self.effects is not _no_effects or self.needs_role

    @property
    def can_spool(self) -> bool:
        """Return whether its ops are spooled while the database is unreachable."""
        return not self.does_something if self.appendable is None else self.appendable


WRITTEN_BY_JOBS: Final = frozenset((*JOB_OPS, INFERENCE, END_PHRASE, CHARGE, SEAL, ANCHOR))
"""The kinds of ops to which running a job leads, whatever it does."""

_AUTHORABLE_KINDS: Final = (RESTORE, DESIGNATE, ROUTE, REKEY)

_BUILT_IN: Final = (
    *(OpKind(name, appendable=False) for name in (*MESH_KINDS, *_AUTHORABLE_KINDS, *JOB_OPS)),
    *(OpKind(name, appendable=False, ends_something=True) for name in ENDING_KINDS),
)


class OpKinds:
    """The kinds of op known to this process."""

    def __init__(self) -> None:
        self._kinds = {kind.name: kind for kind in _BUILT_IN}

    def register(self, kind: OpKind) -> None:
        """Register a kind. Every node that may apply deferred ops of this kind must know it."""
        if self._kinds.setdefault(kind.name, kind) is not kind:
            raise BadValue(
                f"op kind {kind.name!r} is registered already: by another definition",
                hint="choose another name",
            )

    def find_authorable(self, name: str) -> OpKind:
        """Return a kind that users may author; raise `BadValue` for those the mesh writes itself."""
        if name in INTERNAL_KINDS:
            raise BadValue(
                f"op kind {name} can't be authored: it is written by the mesh itself",
                hint="register one of your own",
            )
        return self[name]

    def is_for_all(self, name: str) -> bool:
        """Return whether this is a known kind that every node may author for its users."""
        return name in self and name not in INTERNAL_KINDS and not self[name].needs_role

    def __contains__(self, name: str) -> bool:
        return name in self._kinds

    def __getitem__(self, name: str) -> OpKind:
        if name not in self._kinds:
            raise BadValue(f"op kind {name!r} not found", hint="register it with mesh.oplog.register")
        return self._kinds[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)
