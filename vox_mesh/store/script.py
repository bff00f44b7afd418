"""Scripts: a change as a short list of guarded statements that is applied whole, once, or not at all."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from vox_mesh.errors import BadValue
from vox_mesh.model.base.ulid import UlidSource, is_ulid
from vox_mesh.store.rows import NO_ROWS, Rows, Value, check_values

MAX_ANSWER_COLUMNS: Final = 12
MAX_SCRIPT_BYTES: Final = 8 * 2**20
_NO_REFUSALS: Final[Mapping[int, str]] = {}
_NOT_IN_JSON: Final = (float, bytes)
_OP_BYTES: Final = 512  # an entry of the log, without its payload

Keys = Callable[[], str]
"""Makes ULIDs that nobody else makes."""

_own: Final[Keys] = UlidSource(lambda: time.time_ns() // 1_000_000, random.SystemRandom().getrandbits)
_keys: Final = ContextVar("vox_mesh_keys", default=_own)


def new_key() -> str:
    """Makes the key of a script that was given none."""
    return _keys.get()()


def keys_from(source: Keys) -> None:
    """Have all new keys come from this source, in this context and in whatever is begun in it."""
    _keys.set(source)


class Statement:
    """One SQL statement with its values. `refusal` names the guard that it is, if it is one."""

    __slots__ = ("params", "refusal", "sql", "weight")

    def __init__(self, sql: str, params: Sequence[Value] = (), *, refusal: str | None = None) -> None:
        self.weight = check_values(params)
        self.sql = sql
        self.params = params
        self.refusal = refusal

    def __repr__(self) -> str:
        return f"Statement({self.sql!r}, {tuple(self.params)!r})"


def guard(condition: str, params: Sequence[Value] = (), *, refusal: str) -> Statement:
    """A statement that lets the script go on only if `condition` holds in its transaction.

    Otherwise the script is rolled back and raises `Refused` with `refusal` as its reason.
    """
    return Statement(
        f"INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT ({condition})", params, refusal=refusal
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """What the script answers with: a query that runs after its statements, in its transaction.

    The rows are kept with the script's key. Their order is the same each time, but only the query's own
    columns say what it is. `changes()` in it tells what the last statement changed.
    """

    sql: str
    params: Sequence[Value] = ()
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_values(self.params)
        if not 1 <= len(self.columns) <= MAX_ANSWER_COLUMNS:
            raise BadValue(f"an answer has 1 to {MAX_ANSWER_COLUMNS} columns, not {len(self.columns)}")


class Op(NamedTuple):
    """What a script is in the log: its kind, its payload as canonical JSON, the ops it depends on.

    `signed`: it gets a signature of its own. `remark`: the reason that is noted when it is accepted.
    """

    kind: str
    payload: str
    deps: tuple[str, ...] = ()
    signed: bool = False
    remark: str | None = None


class Script:
    """Statements that take effect together, once, under a key; with an op, the log tells what became of them.

    `appendable` scripts only add rows and need no answer: while the database is away they are kept in the
    spool and replayed later. `repeatable` scripts do by themselves the same when they run twice, so nothing
    is remembered of them, and their answer may be a statement that changes rows and returns them. A script
    that is both has no answer when the spool kept it.
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
        does_something = statements or shape or op or (repeatable and answer)
        if not does_something or (statements and shape is not None):
            raise BadValue("a script has statements, or a shape, or is nothing but an op")
        self.has_answer = answer is not None or (shape is not None and shape.answer is not None)
        self.repeatable = repeatable if shape is None else shape.repeatable
        if appendable and self.has_answer and not self.repeatable:
            raise BadValue("an appendable script may have to wait on disk, so it can't have an answer")
        if self.repeatable and op is not None:
            raise BadValue("a repeatable script is not remembered, so it can't be an op")
        if appendable and repeatable and shape is None:
            raise BadValue("a repeatable script that may have to wait on disk has a shape")
        # Whoever chose a key may send it again, so it is remembered for longer.
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
        self.item: Item = {} if item is None else item
        self.op = op
        self.weight = _check_item(self.item) if shape is not None else 0
        for statement in statements:
            self.weight += statement.weight
        if op is not None:
            self.weight += 2 * len(op.payload) + _OP_BYTES
        if self.weight > MAX_SCRIPT_BYTES:
            raise BadValue(f"the script's values take {self.weight} bytes; at most {MAX_SCRIPT_BYTES} fit")

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
        """A script of a given shape: a run of them merges into few statements for all."""
        return cls(shape=shape, item=item, key=key, appendable=appendable, op=op)

    @property
    def is_lone(self) -> bool:
        """Whether it can be a request by itself, without a transaction around it."""
        return self.shape is not None and self.shape.lone is not None

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that it answers with."""
        if self.shape is not None:
            return self.shape.columns
        return () if self.answer is None else self.answer.columns

    @property
    def refusals(self) -> Mapping[int, str]:
        """Which of its statements are guards, and the reasons that they give."""
        if self.shape is not None:
            return self.shape.refusals
        if not self.statements:
            return _NO_REFUSALS
        return {i: each.refusal for i, each in enumerate(self.statements) if each.refusal is not None}

    def __repr__(self) -> str:
        what = self.shape.name if self.shape else list(self.statements)
        return f"Script({what!r}, key={self.key!r})"


Item = Mapping[str, str | int | None]
"""The values of one script of a shape. They travel as JSON, so floats and bytes are not among them."""


@dataclass(frozen=True, slots=True, eq=False)  # there is one of each name
class Shape:
    """Hot scripts that differ only in their values, written once for any number of them.

    Each statement has a single parameter `?1`, a JSON array of objects: an item's values and, as `key`,
    its script's key. `answer` selects `key` first, then `columns`: rows find their script by key,
    never by position. Scripts run merged, so the statements must do the same as one after another
    would; two items with the same `subject` are never merged. A name is registered once, so that a
    spooled script finds its shape again.

    Statements of `repeatable` scripts are also given the scope, `?2`, and the repository, `?3`; their rows
    begin with the subject instead of the key. `lone` does the same for one script that is a request by
    itself, without a transaction around it: `?1` is the scope, `?2` the repository, `IS_CURRENT` stands for
    the guard of the request, and from `?7` on it is given the item's `lone_values`, of which `key` is one.
    """

    name: str
    statements: tuple[str, ...]
    answer: str | None = None
    columns: tuple[str, ...] = ()
    refusals: Mapping[int, str] = field(default_factory=dict)
    subject: Callable[[Item], Hashable] | None = None
    repeatable: bool = False
    lone: str | None = None
    lone_values: tuple[str, ...] = ()

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
    """The registered shape of that name."""
    return _SHAPES.get(name)


class Outcome(NamedTuple):
    """How a script ended that was not refused.

    `spooled`: it waits in the local spool for the database to come back. `repeated`: it had been applied
    before under this key, and this is the answer of that time; of a repeatable script, it may have been, and
    this is the answer of now.
    """

    key: str
    rows: Rows = NO_ROWS
    spooled: bool = False
    repeated: bool = False


def _check_item(item: Item) -> int:
    texts: list[str] = []
    others: list[Value] = []
    for name, value in item.items():
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, _NOT_IN_JSON):
            raise BadValue(f"{name!r} is a {type(value).__name__}, which a shape's item can't hold")
        else:
            others.append(value)
    text = "".join(texts)  # they are looked at together, which is quicker
    if "\0" in text:  # older SQLite ends a JSON string there
        name = next(name for name, value in item.items() if isinstance(value, str) and "\0" in value)
        raise BadValue(f"{name!r} holds a NUL character, which a shape's item can't hold")
    return check_values((text, *others))
