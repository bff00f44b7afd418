"""The fields of a manifest: their validation and stored form."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    PlainValidator,
    StringConstraints,
    ValidationError,
    ValidationInfo,
)

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import canonical, parse
from vox_mesh.model.base.durations import milliseconds
from vox_mesh.model.base.ulid import is_ulid
from vox_mesh.model.documents.documents import Path
from vox_mesh.model.documents.validation import (
    FROM_LIST,
    Text,
    Texts,
    check_text,
    flaw,
    flaws_of,
    named,
    shown,
)
from vox_mesh.model.jobs.records import MAX_TAGS, TAG
from vox_mesh.model.rhythm.tempo import Until

MAX_JSON_BYTES: Final = 256 * 1024
MAX_AFTER: Final = 10_000
"""The maximum number of predecessors of one job."""

MAX_AFTER_OPS: Final = 256
"""The maximum number of ops among them: the row of the job is written when one of them comes."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)

_DAY_MS: Final = 86_400_000
_JOB_ID: Final = re.compile(r"[0-9a-f]{64}")
_JOB_ID_PREFIX: Final = re.compile(r"[0-9a-f]{6,64}")
_HEX_HASH: Final = re.compile(r"(?:[a-z0-9-]+:)?(?:[0-9A-Fa-f]{2}){16,64}")
STORED: Final = "stored"
"""The validation context of a stored core: its spelling is part of its id, and is kept."""
_RFC_3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


class When(StrEnum):
    """The condition of a predecessor: its success, or any end."""

    SUCCESS = "success"
    END = "end"


class After(NamedTuple):
    """A condition that a job waits for: a job's end or, with `op`, that an op is accepted.

    `job` is a job id or, until it is resolved, an id prefix or ULID.
    """

    job: str | None
    op: str | None = None
    when: When = When.SUCCESS

    @property
    def is_resolved(self) -> bool:
        """Return whether a job is named by its whole id."""
        return self.job is None or is_job_id(self.job)

    @property
    def core(self) -> str | dict[str, str]:
        """Return the form that is hashed."""
        if self.job is None:
            return {"op": str(self.op)}
        return self.job if self.when is When.SUCCESS else {"job": self.job, "when": self.when.value}


def is_job_id(text: str) -> bool:
    """Return whether a text is a whole job id."""
    return _JOB_ID.fullmatch(text) is not None


def _program(command: tuple[str, ...]) -> tuple[str, ...]:
    if not command:
        raise flaw("must not be empty")
    if not command[0]:
        raise flaw("the program has no name", 0)
    return command


def _variable(name: str) -> str:
    if not name or "=" in name:
        raise flaw(f"{shown(name)} is no name of a variable")
    return check_text(name)


def _folder(path: str) -> str:
    if not path.startswith("/") and (path.startswith(("~", "-")) or not path or ".." in path.split("/")):
        raise flaw(f"{shown(path)} is neither an absolute path nor one below the worker's folder")
    return check_text(path)


def _ulid(text: str) -> str:
    if not is_ulid(text):
        raise flaw(f"{shown(text)} is not a ULID")
    return text


def _json(value: Any) -> Any:
    """Return the value as parsed from its canonical JSON: a copy, so that changes do not affect the id."""
    try:
        text = canonical(value)
    except BadValue as error:
        raise flaw(str(error)) from None
    size = len(text) if text.isascii() else len(text.encode())
    if size > MAX_JSON_BYTES:
        raise flaw(f"takes {size} bytes as canonical JSON; at most {MAX_JSON_BYTES} fit")
    copy = parse(text)
    if "\\u0000" in text:
        _check_characters(copy, ())
    return copy


def _check_characters(value: Any, at: Path) -> None:
    if isinstance(value, str):
        if "\0" in value:
            raise flaw("has a NUL character", *at)
        return
    if isinstance(value, dict):
        for name, each in value.items():
            _check_characters(name, at)
            _check_characters(each, (*at, name))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            _check_characters(each, (*at, index))


def _duration_ms(value: Any, low: int, high: int) -> int:
    try:
        duration = milliseconds(value)
    except ValueError as error:
        raise flaw(str(error)) from None
    if not low <= duration <= high:
        raise flaw(f"{shown(value)} is too {'short' if duration < low else 'long'}")
    return duration


def _timeout(value: Any) -> int:
    seconds, rest = divmod(_duration_ms(value, 0, 30 * _DAY_MS), 1_000)
    if rest or (isinstance(value, float) and value != seconds):  # a tiny one must not become 0, no limit
        raise flaw(f"{shown(value)} is not whole seconds")
    return seconds


def _duration(low: int, high: int) -> Callable[[Any], timedelta]:
    return lambda value: timedelta(milliseconds=_duration_ms(value, low, high))


def _lease(value: Any) -> timedelta | Until:
    return Until(value) if value in tuple(Until) else _duration(1_000, _DAY_MS)(value)


def _moment(value: Any) -> datetime:
    if isinstance(value, str) and _RFC_3339.fullmatch(value):
        try:
            value = datetime.fromisoformat(value.upper())
        except ValueError as error:
            raise flaw(f"{shown(value)} is no time: {error}") from None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise flaw(f"{shown(value)} is no time with an offset")
    if not timedelta() <= value - EPOCH < timedelta(days=1_000 * 365):
        raise flaw(f"{shown(str(value))} is too far away")
    return value.astimezone(UTC)


def _after(value: Any) -> After:
    if isinstance(value, After):
        value = value.core
    if isinstance(value, str):
        return After(_job_name(value))
    if not isinstance(value, Mapping):
        raise flaw(f"must be text or a map, not {named(value)}")
    for name in value:
        if name not in After._fields:
            raise flaw("is not known here", name)
    if ("job" in value) == ("op" in value):
        raise flaw("must have either job or op")
    if "op" in value:
        if "when" in value:
            raise flaw("an op is there or not; when is for jobs", "when")
        if not isinstance(value["op"], str) or not is_ulid(value["op"]):
            raise flaw(f"{shown(value['op'])} is not the ULID of an op", "op")
        return After(None, value["op"])
    when = value.get("when", When.SUCCESS)
    if when not in tuple(When):
        raise flaw(f"{shown(when)} is neither success nor end", "when")
    return After(_job_name(value["job"], "job"), when=When(when))


def _job_name(name: Any, *at: str) -> str:
    if isinstance(name, str):
        if _JOB_ID_PREFIX.fullmatch(name) or is_ulid(name):
            return name
        if _JOB_ID_PREFIX.fullmatch(name.lower()):
            return name.lower()
    raise flaw(f"{shown(name)} names no job", *at)


def _check_unique(after: tuple[After, ...]) -> tuple[After, ...]:
    if len(after) > MAX_AFTER:
        raise flaw(f"has {len(after)}; at most {MAX_AFTER} fit")
    if len(after) > MAX_AFTER_OPS and (ops := sum(each.op is not None for each in after)) > MAX_AFTER_OPS:
        raise flaw(f"has {ops} ops; at most {MAX_AFTER_OPS} fit")
    seen: set[tuple[str | None, str | None]] = set()
    for index, each in enumerate(after):
        if each[:2] in seen:
            raise flaw(f"{each.job or each.op} is named twice", index)
        seen.add(each[:2])
    return after


def _tags(tags: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tags in the order in which they are hashed."""
    if len(tags) > MAX_TAGS:
        raise flaw(f"has {len(tags)}; at most {MAX_TAGS} fit")
    for index, each in enumerate(tags):
        if each in tags[:index]:
            raise flaw(f"{each} is named twice", index)
    return tuple(sorted(tags))


def _inputs(value: tuple[dict[str, Any], ...], info: ValidationInfo) -> tuple[dict[str, Any], ...]:
    copies = _json(list(value))
    return tuple(copies if info.context == STORED else map(_with_lower_hash, copies))


def _with_lower_hash(pointer: dict[str, Any]) -> dict[str, Any]:
    """Return an input with its hash in lowercase, if it says that it is one: by `algo` or by a prefix."""
    text = pointer.get("hash")
    if not isinstance(text, str) or not _HEX_HASH.fullmatch(text) or not ("algo" in pointer or ":" in text):
        return pointer
    return {**pointer, "hash": text.lower()}


def _score(value: Any) -> dict[str, Any]:
    from vox_mesh.model.rhythm import score  # imported late: few jobs have one

    return _validate_map(score.Score, value)


def _budget(value: Any) -> dict[str, Any]:
    from vox_mesh.model.rhythm import budgets

    return _validate_map(budgets.Budget, value)


def _validate_map(model: type[BaseModel], value: Any) -> dict[str, Any]:
    """Return the map unchanged if the model accepts it."""
    if not isinstance(value, dict):
        raise flaw(f"must be a map, not {named(value)}")
    for name, each in value.items():
        if each is None:
            raise flaw("must not be empty or null; leave it out", name)
    try:
        model.model_validate(value)
    except ValidationError as error:
        path, message = next(flaws_of(error.errors(include_url=False), model, "it"))
        raise flaw(message, *path) from None
    copy: dict[str, Any] = _json(value)
    return copy


Command = Annotated[Texts, AfterValidator(_program)]
Timeout = Annotated[int, PlainValidator(_timeout)]
Variables = dict[Annotated[str, AfterValidator(_variable)], Text]
FolderPath = Annotated[str, AfterValidator(_folder)]
Json = Annotated[Any, AfterValidator(_json)]
Inputs = Annotated[tuple[dict[str, Any], ...], FROM_LIST, AfterValidator(_inputs)]
PolicyRoot = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-fA-F]{64}$"), AfterValidator(str.lower)]
Ulid = Annotated[str, AfterValidator(_ulid)]
Kind = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*(\.[a-z0-9_-]+)*$", max_length=128)]
Predecessors = Annotated[
    tuple[Annotated[After, PlainValidator(_after)], ...], FROM_LIST, AfterValidator(_check_unique)
]
Priority = Annotated[int, Field(ge=0, le=3)]
Moment = Annotated[datetime, PlainValidator(_moment)]
At = Literal["downbeat"]
PhaseName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
Attempts = Annotated[int, Field(ge=1, le=100)]
Interruptions = Annotated[int, Field(ge=0, le=100)]
Backoff = Annotated[timedelta, PlainValidator(_duration(0, _DAY_MS))]
Lease = Annotated[timedelta | Until, PlainValidator(_lease)]
Score = Annotated[dict[str, Any], PlainValidator(_score)]
Budget = Annotated[dict[str, Any], PlainValidator(_budget)]
Tag = Annotated[str, StringConstraints(pattern=f"^{TAG}$")]
Tags = Annotated[tuple[Tag, ...], FROM_LIST, AfterValidator(_tags)]
Nonce = Annotated[Text, StringConstraints(min_length=1, max_length=128)]
JobId = Annotated[str, StringConstraints(pattern=f"^{_JOB_ID.pattern}$")]
