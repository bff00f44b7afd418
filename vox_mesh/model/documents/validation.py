"""What is wrong with a value: told with its place, and with what is allowed there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from vox_mesh.errors import BadDocument
from vox_mesh.model.documents.documents import Document, DocumentFault, Path, field_text

Flaw = tuple[Path, str]
"""Where something is wrong, and what."""

FLAW: Final = "flaw"
"""The type of our own checks' errors: `wrong` in their context says what it is, `at` where in the field."""

MAX_FAULTS: Final = 1_000
"""How many faults of one text are told."""

_MUST_BE: Final = {
    "string_type": "text",
    "tuple_type": "an array",
    "dict_type": "a map",
    "model_type": "a map",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
}

AnyModel = TypeVar("AnyModel", bound=BaseModel)


def flaw(wrong: str, *at: str | int) -> PydanticCustomError:
    """What a check raises."""
    return PydanticCustomError(FLAW, "{wrong}", {"wrong": wrong, "at": at})


def shown(value: Any) -> str:
    """A value in a line that tells of it, shortened."""
    if isinstance(value, str):
        return repr(value if len(value) <= 50 else f"{value[:45]}...")
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e15:
        return named(value)
    return repr(value)


def named(value: Any) -> str:
    """What sort of value it is."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case Mapping():
            return "a map"
        case list() | tuple():
            return "an array"
    return f"a {type(value).__name__}"


def flaws_of(errors: Iterable[ErrorDetails], model: type[BaseModel], called: str) -> Iterator[Flaw]:
    """What a model found wrong, each with what is allowed there: the description of the field."""
    for error in errors:
        path = tuple(step for step in error["loc"] if step != "[key]")
        fields = [*_way(model, path)]
        if error["type"] == "extra_forbidden":
            within = (_model_of(fields[-1]) if fields else None) or model
            what = field_text(path[:-1]) or called
            yield path, f"is no field of {what}; allowed: {', '.join(sorted(within.model_fields))}"
        elif error["type"] == FLAW and (not fields or _model_of(fields[-1])):
            # A rule between the fields of a model, which says itself what is allowed.
            yield (*path, *error["ctx"]["at"]), error["ctx"]["wrong"]
        else:
            at = error["ctx"]["at"] if error["type"] == FLAW else ()
            allowed = [field.description for field in fields if field.description]
            yield (*path, *at), "; allowed: ".join([_wrong(error), *allowed[-1:]])


def _wrong(error: ErrorDetails) -> str:
    kind, value = error["type"], error["input"]
    if kind == FLAW:
        return str(error["ctx"]["wrong"])
    if kind == "missing":
        return "is missing"
    if kind not in _MUST_BE:
        return f"must not be {shown(value)}"
    quotes = ", in quotes" if kind == "string_type" and isinstance(value, int | float | None) else ""
    return f"must be {_MUST_BE[kind]}{quotes}, not {named(value)}"


def nulls(fields: Mapping[str, Any], model: type[BaseModel]) -> Iterator[Flaw]:
    """Fields that are there and say nothing."""
    for name, value in fields.items():
        field = model.model_fields.get(name)
        if field is None:
            continue
        inner = _model_of(field)
        if value is None:
            yield (name,), "must not be empty or null; leave it out"
        elif inner and isinstance(value, Mapping):
            yield from (((name, *path), wrong) for path, wrong in nulls(value, inner))


def _way(model: type[BaseModel], path: Path) -> Iterator[FieldInfo]:
    """The fields that lead to a place, as far as they are those of models."""
    for step in path:
        field = model.model_fields.get(str(step))
        if field is None:
            return
        yield field
        if (inner := _model_of(field)) is None:
            return
        model = inner


def _model_of(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def faults_of(document: Document, flaws: Iterable[Flaw]) -> list[DocumentFault]:
    """All faults of a document: of those at one place, the first that was found."""
    faults = list(document.faults)
    told = {fault.path for fault in faults}
    for path, wrong in flaws:
        if not any(path[:length] in told for length in range(len(path) + 1)):
            told.add(path)
            faults.append(document.fault(path, wrong))
    return faults


def shortened(faults: Sequence[str], name: str) -> Sequence[str]:
    """As many of them as anyone reads."""
    more = len(faults) - MAX_FAULTS
    return [*faults[:MAX_FAULTS], f"{name}: and {more} more faults"] if more > 0 else faults


# --- a text with one model in it ---------------------------------------------------------------------


def read_model(
    model: type[AnyModel], text: str | bytes, name: str, *, called: str, bad: type[BadDocument]
) -> AnyModel:
    """What a text of YAML or JSON says, or `bad` with all that is wrong with it, each with its line."""
    from vox_mesh.model.documents.yaml_reader import read_documents  # a parser is not for everyone to load

    documents = read_documents(text, name)
    if not documents:
        raise bad([str(DocumentFault(name, 1, (), f"there is no {called} in it"))])
    document = documents[0]
    found: AnyModel | None = None
    flaws: list[Flaw] = []
    if isinstance(document.value, dict):
        flaws += nulls(document.value, model)
        try:
            found = model.model_validate(document.value)
        except ValidationError as error:
            flaws += flaws_of(error.errors(include_url=False), model, f"a {called}")
    elif not document.faults:
        flaws.append(((), f"a {called} is a map, not {named(document.value)}"))
    faults = sorted(faults_of(document, flaws), key=lambda fault: fault.line)
    for extra in documents[1:2]:
        faults += extra.faults or [extra.fault((), f"there is more than one {called} in it")]
    if found is None or faults:
        raise bad(shortened([*map(str, faults)], name))
    return found


def made(
    model: type[AnyModel], fields: Mapping[str, Any], *, called: str, bad: type[BadDocument]
) -> AnyModel:
    """What these fields are, or `bad` with all that is wrong with them, each with its place."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise bad(in_words(flaws_of(error.errors(include_url=False), model, f"a {called}"))) from None


def in_words(flaws: Iterable[Flaw]) -> list[str]:
    """What is wrong with fields that stand in no text: each with its place."""
    return [f"{field_text(path)}: {wrong}" if path else wrong for path, wrong in flaws]
