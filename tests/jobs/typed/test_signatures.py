"""Signatures of job functions: what may be passed, how it is stored, and what is said of a mistake."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import Enum
from typing import Annotated, Any
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from vox_mesh import JobContext, Manifest, MeshApp
from vox_mesh.errors import BadArguments, BadManifest, BadValue
from vox_mesh.jobs.typed.inline_context import InlineContext
from vox_mesh.jobs.typed.job_signature import JobSignature


class Tone(Enum):
    DRY = "dry"


@dataclass
class Page:
    number: int
    text: str = ""


class Order(BaseModel):
    pages: list[Page]
    due: date


def every(
    number: int,
    tone: Tone,
    page: Page,
    order: Order,
    at: datetime,
    key: UUID,
    raw: bytes,
    *,
    free: Any = None,
) -> None:
    """Take a parameter of each kind of type."""


_GIVEN: tuple[Any, ...] = (
    3,
    Tone.DRY,
    Page(1, "a"),
    Order(pages=[Page(2)], due=date(2026, 1, 2)),
    datetime(2026, 1, 2, 3, tzinfo=UTC),
    UUID(int=7),
    b"raw",
)


def given_by(signature: JobSignature, payload: Any) -> dict[str, Any]:
    """Return the arguments of a job with this payload."""
    return dict(signature.arguments(InlineContext(Manifest.of(kind="work", payload=payload))).arguments)


async def test_arguments_of_every_kind_of_type_come_back_from_json_as_they_were() -> None:
    signature = JobSignature("work", every)
    payload = signature.payload(*_GIVEN, free={"any": [1, None]})
    assert payload["order"] == {"pages": [{"number": 2, "text": ""}], "due": "2026-01-02"}
    assert tuple(given_by(signature, payload).values()) == (*_GIVEN, {"any": [1, None]})


async def test_a_default_is_that_of_the_code_that_runs_and_not_of_the_one_that_scheduled() -> None:
    def work(topic: str, pages: int = 3) -> None: ...

    signature = JobSignature("work", work)
    assert signature.payload("bees") == {"topic": "bees"}
    assert given_by(signature, {"topic": "bees"}) == {"topic": "bees"}


async def test_the_context_is_no_argument() -> None:
    def work(context: JobContext, topic: str) -> None: ...

    signature = JobSignature("work", work)
    assert signature.payload("bees") == {"topic": "bees"}
    assert [*given_by(signature, {"topic": "bees"})] == ["context", "topic"]


def build(topic: str, pages: Annotated[int, Field(gt=0)], order: Order | None = None) -> str:
    """Take what may be wrong."""
    return topic * pages


@pytest.mark.parametrize(
    ("args", "kwargs", "fault"),
    [
        ((), {}, "call of work: missing a required argument: 'topic'"),
        (("a", 1, None, 4), {}, "call of work: too many positional arguments"),
        (("a", 1), {"colour": 1}, "call of work: got an unexpected keyword argument 'colour'"),
        (("a", 0), {}, "argument pages of work: must be greater than 0, got 0"),
        (("a", "many"), {}, "argument pages of work: must be a valid integer"),
        ((5, 1), {}, "argument topic of work: must be a valid string, got 5"),
        (
            ("a", 1, {"pages": [{"number": "x"}], "due": "2026-01-02"}),
            {},
            "argument order.pages[0].number of work: must be a valid integer",
        ),
        (
            (5, 0),
            {},
            "argument topic of work: must be a valid string, got 5; argument pages of work: must be",
        ),
    ],
)
def test_a_wrong_call_is_one_line_that_names_the_parameter(
    args: tuple[Any, ...], kwargs: dict[str, Any], fault: str
) -> None:
    with pytest.raises(BadArguments) as raised:
        JobSignature("work", build).payload(*args, **kwargs)
    assert raised.value.line.startswith(fault)
    assert "it takes (topic: " in raised.value.hint
    assert "\n" not in raised.value.line


@pytest.mark.parametrize(
    ("payload", "fault"),
    [
        (None, "argument topic of work is missing; argument pages of work is missing"),
        ("bees", "payload of work must be an object of arguments by name"),
        ({"topic": "a", "pages": 1, "colour": 2}, "work has no parameter colour"),
        ({"topic": "a", "pages": -1}, "argument pages of work: must be greater than 0, got -1"),
    ],
)
async def test_a_wrong_payload_names_the_parameter(payload: Any, fault: str) -> None:
    with pytest.raises(BadArguments) as raised:
        given_by(JobSignature("work", build), payload)
    assert raised.value.line.startswith(fault)


class NotJson:
    """Something that pydantic does not know."""


def takes_all(*pages: int) -> None: ...


def takes_any(**pages: int) -> None: ...


def takes_by_place(page: int, /) -> None: ...


def takes_an_object(page: NotJson) -> None: ...


def returns_an_object() -> NotJson:
    return NotJson()


def takes_the_context_late(page: int, context: JobContext) -> None: ...


def takes_what_is_not_there(page: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821


async def yields() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        (takes_all, "parameter *pages: 'int' of work must have a name"),
        (takes_any, "parameter **pages: 'int' of work must have a name"),
        (takes_by_place, "parameter page: 'int' of work must have a name"),
        (takes_an_object, "the type of parameter page of work can't be validated"),
        (returns_an_object, "the type of result of work can't be validated"),
        (takes_the_context_late, "the context of work must be its first parameter, got it as context"),
        (takes_what_is_not_there, "the types of work can't be resolved: name 'Missing' is not defined"),
        (yields, "work must return its result, and not yield it"),
        (print, "work must be a function, got builtin_function_or_method"),
    ],
)
def test_a_function_that_can_be_no_job_is_refused_where_it_is_declared(
    function: Callable[..., Any], fault: str
) -> None:
    with pytest.raises(BadValue) as raised:
        MeshApp().job("work")(function)
    assert raised.value.line.startswith(fault)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"retries": 100}, "retries must be an integer from 0 to 99, got 100"),
        ({"max_running": 0}, "max_running of work must be an integer of at least 1, got 0"),
        ({"priority": 9}, "priority: must not be 9"),
        ({"colour": "red"}, "colour: is no field of a manifest"),
    ],
)
def test_wrong_options_are_refused_where_they_are_declared(options: dict[str, Any], fault: str) -> None:
    with pytest.raises((BadValue, BadManifest)) as raised:
        MeshApp().job("work", **options)
    assert raised.value.line.startswith(fault)


def test_a_kind_has_one_function() -> None:
    mesh = MeshApp()
    mesh.job("work")(build)
    with pytest.raises(BadValue, match="work has two handlers"):
        mesh.job("work")(build)
