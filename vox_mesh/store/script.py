"""Describe one write request as a script: guarded statements under an idempotency key."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from vox_mesh.errors import BadValue, MeshError
from vox_mesh.model.base.ulid import UlidSource, is_ulid
from vox_mesh.store.acting import current_agent
from vox_mesh.store.rows import NO_ROWS, Rows, Value, check_values

MAX_ANSWER_COLUMNS: Final = 12
MAX_SCRIPT_BYTES: Final = 8 * 2**20
_NO_REFUSALS: Final[Mapping[int, str]] = {}
_NOT_IN_JSON: Final = (float, bytes)
_OP_BYTES: Final = 512  # size of a log entry without its payload

Keys = Callable[[], str]
"""Generates unique ULIDs."""


def _random_bits(bits: int) -> int:
    return int.from_bytes(os.urandom(bits // 8), "big")


_own: Final[Keys] = UlidSource(lambda: time.time_ns() // 1_000_000, _random_bits)
_keys: Final = ContextVar("vox_mesh_keys", default=_own)


def new_key() -> str:
    """Return a new idempotency key."""
    return _keys.get()()


def keys_from(source: Keys) -> None:
    """Take new keys from this source, in this context and in all tasks started in it."""
    _keys.set(source)


class WriterId(NamedTuple):
    """The mesh that scripts belong to, and the writer that sends them."""

    scope_id: str
    repository_id: str
    writer: str

    @property
    def mesh_id(self) -> tuple[str, str]:
        """Return the scope and the repository, which are part of every key in the database."""
        return self.scope_id, self.repository_id


class Statement:
    """One SQL statement with its values. For a guard, `refusal` is the reason of its rejection."""

    __slots__ = ("params", "refusal", "sql", "weight")

    def __init__(self, sql: str, params: Sequence[Value] = (), *, refusal: str | None = None) -> None:
        self.weight = check_values(params)
        self.sql = sql
        self.params = params
        self.refusal = refusal

    @classmethod
    def of_checked(
        cls, sql: str, params: Sequence[Value], weight: int, *, refusal: str | None = None
    ) -> Statement:
        """Return a statement with values that were checked before, and have this weight."""
        statement = cls.__new__(cls)
        statement.sql, statement.params, statement.weight, statement.refusal = sql, params, weight, refusal
        return statement

    def __repr__(self) -> str:
        return f"Statement({self.sql!r}, {tuple(self.params)!r})"


def guard(condition: str, params: Sequence[Value] = (), *, refusal: str) -> Statement:
    """Return a statement that lets the script continue only if `condition` holds in its transaction.

    Otherwise the script is rolled back and raises `Refused` with `refusal` as its reason.
    """
    return Statement(
        f"INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT ({condition})", params, refusal=refusal
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """A query that runs after the script's statements, in its transaction, and returns its result.

    The rows are stored under the script's key. Their order is stable, but only the query's own columns
    define it. `changes()` in the query is the number of rows that the last statement changed.
    """

    sql: str
    params: Sequence[Value] = ()
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_values(self.params)
        if not 1 <= len(self.columns) <= MAX_ANSWER_COLUMNS:
            raise BadValue(f"an answer has 1 to {MAX_ANSWER_COLUMNS} columns, not {len(self.columns)}")


class Op(NamedTuple):
    """A script's entry in the op log: its kind, its payload as canonical JSON, the ops it depends on.

    `signed`: the entry gets its own signature. `remark`: the reason recorded when it is accepted. `agent`
    acts, by `grant`; by default it is the agent of the current task, or that of the writer.
    """

    kind: str
    payload: str
    deps: tuple[str, ...] = ()
    signed: bool = False
    remark: str | None = None
    agent: str | None = None
    grant: str | None = None


class Script:
    """A write request: statements applied atomically and once, under an idempotency key.

    An op adds an entry to the log. `appendable` scripts only add rows and need no answer: while the database
    is unreachable they are spooled and replayed later. `repeatable` scripts are idempotent by themselves, so
    their keys are not stored, and their answer may be a statement that changes rows and returns them. A
    script that is both has no answer if it was spooled.
    """

    __slots__ = (
        "answer",
        "appendable",
        "has_answer",
        "item",
        "key",
        "leaves_key",
        "may_come_again",
        "op",
        "repeatable",
        "shape",
        "statements",
        "weight",
    )

    def __init__(
        self,
        *statements: Statement,
        answer: Answer | None = None,
        key: str | None = None,
        appendable: bool = False,
        shape: Shape | None = None,
        item: Item | None = None,
        op: Op | None = None,
        repeatable: bool = False,
    ) -> None:
        if shape is not None:
            self.has_answer, self.repeatable = shape.has_answer, shape.repeatable
            self.item: Item = {} if item is None else item
            weight = _check_item(self.item)
        else:
            self.has_answer, self.repeatable, self.item = answer is not None, repeatable, _NO_ITEM
            weight = 0
        if (shape is not None and statements) or not (statements or shape or op or (repeatable and answer)):
            raise BadValue("a script has statements, or a shape, or is nothing but an op")
        if appendable and self.has_answer and not self.repeatable:
            raise BadValue("an appendable script may have to wait on disk, so it can't have an answer")
        if self.repeatable and op is not None:
            raise BadValue("a repeatable script is not remembered, so it can't be an op")
        if appendable and repeatable and shape is None:
            raise BadValue("a repeatable script that may have to wait on disk has a shape")
        # A caller that chose the key may send it again, so it is kept for longer.
        self.may_come_again = key is not None
        self.leaves_key = not self.repeatable and (op is None or self.has_answer)
        if key is None:
            key = new_key()
        elif not is_ulid(key):
            raise BadValue(f"the key {key!r} is not a ULID")
        self.key: str = key
        self.statements = statements
        self.answer = answer
        self.appendable = appendable
        self.shape = shape
        self.op = op
        for statement in statements:
            weight += statement.weight
        if op is not None:
            weight += 2 * len(op.payload) + _OP_BYTES
            if op.agent is None and (agent := current_agent()) is not None:
                self.op = op._replace(agent=agent)
        if weight > MAX_SCRIPT_BYTES:
            raise BadValue(f"the script's values take {weight} bytes; at most {MAX_SCRIPT_BYTES} fit")
        self.weight = weight

    @classmethod
    def of(
        cls,
        shape: Shape,
        item: Item,
        *,
        key: str | None = None,
        appendable: bool = False,
        op: Op | None = None,
    ) -> Script:
        """Create a script of a given shape. Consecutive scripts of one shape share their statements."""
        return cls(shape=shape, item=item, key=key, appendable=appendable, op=op)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the answer's columns."""
        if self.shape is not None:
            return self.shape.columns
        return () if self.answer is None else self.answer.columns

    @property
    def refusals(self) -> Mapping[int, str]:
        """Return the reason of each guard, by the index of its statement."""
        if self.shape is not None:
            return self.shape.refusals
        if not self.statements:
            return _NO_REFUSALS
        return {i: each.refusal for i, each in enumerate(self.statements) if each.refusal is not None}

    def __repr__(self) -> str:
        what = self.shape.name if self.shape else list(self.statements)
        return f"Script({what!r}, key={self.key!r})"


Item = Mapping[str, str | int | None]
"""The values of one script of a shape. They are sent as JSON, so floats and bytes are not allowed."""

_NO_ITEM: Final[Item] = {}


@dataclass(frozen=True, slots=True, eq=False)  # names are unique
class Shape:
    """Statements shared by scripts that differ only in their values.

    Each statement has one parameter `?1`, a JSON array of objects: the values of an item and, as `key`, the
    key of its script. `answer` selects `key` first, then `columns`: rows are matched to scripts by key, never
    by position. The statements run once for several scripts and must have the same effect as running them
    one by one; two items with the same `subject` are never merged. Names are unique, so that a spooled
    script finds its shape again.

    Statements of `repeatable` scripts also get the scope as `?2` and the repository as `?3`; their rows begin
    with the subject instead of the key. `single_statement` has the same effect for one script that is
    sent alone, without a transaction around it: `?1` is the scope, `?2` the repository, `IS_CURRENT` stands
    for the guard of the batch, and from `?7` on come the item's `single_statement_values`, of which `key` is
    one. A shape with nothing but a `single_statement` is never merged. `single_statement_for` returns a
    shorter form of it that has the same effect for an item, `answer_for` one of `answer` for several items.

    `must_answer`: a script without rows was refused.
    """

    name: str
    statements: tuple[str, ...]
    answer: str | None = None
    columns: tuple[str, ...] = ()
    refusals: Mapping[int, str] = field(default_factory=dict)
    subject: Callable[[Item], Hashable] | None = None
    repeatable: bool = False
    single_statement: str | None = None
    single_statement_values: tuple[str, ...] = ()
    single_statement_for: Callable[[Item], str] | None = None
    answer_for: Callable[[Sequence[Item]], str] | None = None
    must_answer: bool = False

    @property
    def has_answer(self) -> bool:
        """Return whether its scripts have an answer."""
        return self.answer is not None or self.single_statement is not None

    @property
    def is_single_statement(self) -> bool:
        """Return whether each of its scripts is a statement of its own."""
        return self.answer is None and self.single_statement is not None

    def single(self, writer_id: WriterId, script: Script, who: Sequence[Value]) -> tuple[str, list[Value]]:
        """Return the single statement of a script, and its values; `who`: those of the guard."""
        assert self.single_statement is not None
        short, item = self.single_statement_for, script.item
        sql = self.single_statement if short is None else short(item)
        scope_id, repository_id, _ = writer_id
        # Writes that an older version has spooled lack newer values.
        own = [script.key if name == "key" else item.get(name) for name in self.single_statement_values]
        return sql, [scope_id, repository_id, *who, *own]

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_.]*", self.name):
            raise BadValue(f"the shape's name {self.name!r} is not in lower case")
        if len(self.columns) > MAX_ANSWER_COLUMNS:
            raise BadValue(f"an answer has at most {MAX_ANSWER_COLUMNS} columns, not {len(self.columns)}")
        if self.repeatable and self.answer is not None and self.subject is None:
            raise BadValue(f"{self.name} needs subjects, by which its rows find their scripts")
        if _SHAPES.setdefault(self.name, self) is not self:
            raise BadValue(f"there are two shapes named {self.name!r}")


_SHAPES: Final[dict[str, Shape]] = {}


def shape_named(name: str) -> Shape | None:
    """Return the registered shape of that name."""
    return _SHAPES.get(name)


class Outcome(NamedTuple):
    """The result of a script that was applied or spooled.

    `spooled`: it is in the local spool until the database is back. `repeated`: it had already been applied
    under this key, and this is the answer from then; a repeatable script may have been applied before, and
    this is its current answer.
    """

    key: str
    rows: Rows = NO_ROWS
    spooled: bool = False
    repeated: bool = False


Verdict = Outcome | MeshError
"""The result of a script. An error other than `ScriptFailed` means that it was not tried. An unknown outcome
is raised as `OutcomeUnknown`, and is never a verdict."""


def _check_item(item: Item) -> int:
    """Reject values that a shape's item can't hold. Return their approximate size in bytes."""
    others: list[Value] = []
    weight = 0
    for name, value in item.items():
        if isinstance(value, str):
            if "\0" in value:  # older SQLite versions end a JSON string there
                raise BadValue(f"{name!r} holds a NUL character, which a shape's item can't hold")
            if value.isascii():
                weight += len(value)
            else:
                others.append(value)
        elif isinstance(value, _NOT_IN_JSON):
            raise BadValue(f"{name!r} is a {type(value).__name__}, which a shape's item can't hold")
        else:
            others.append(value)
    return weight + check_values(others)
