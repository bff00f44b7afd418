"""Validation faults: their position, and the rule that was broken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from vox_mesh.errors import BadDocument
from vox_mesh.model.documents.documents import Document, DocumentFault, Path, field_text, is_unicode

Flaw = tuple[Path, str]
"""The path of a fault, and its text."""

FLAW: Final = "flaw"
"""The type of our own checks' errors: `wrong` in their context is the text, `at` the path in the field."""

MAX_FAULTS: Final = 1_000
"""The maximum number of faults reported for one text."""

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
    """Return the error that a check raises."""
    return PydanticCustomError(FLAW, "{wrong}", {"wrong": wrong, "at": at})


def check_text(text: str) -> str:
    """Return the text if it can be stored and hashed."""
    if "\0" in text:
        raise flaw("has a NUL character")
    if not is_unicode(text):
        raise flaw("has half a surrogate pair, which is no character")
    return text


FROM_LIST: Final = BeforeValidator(lambda value: tuple(value) if type(value) is list else value)
"""Accepts a list for a tuple: documents have arrays, and models must not change."""

Text = Annotated[str, AfterValidator(check_text)]
Texts = Annotated[tuple[Text, ...], FROM_LIST]


def shown(value: Any) -> str:
    """Return a value as text for a message, shortened."""
    if isinstance(value, str):
        return repr(value if len(value) <= 50 else f"{value[:45]}...")
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e15:
        return named(value)
    return repr(value)


def named(value: Any) -> str:
    """Return the name of a value's type, for messages."""
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
    """Yield the faults a model found, each with the rule from the field's description."""
    for error in errors:
        path = tuple(step for step in error["loc"] if step != "[key]")
        fields = [*_fields_along(model, path)]
        if error["type"] == "extra_forbidden":
            within = (_model_of(fields[-1]) if fields else None) or model
            what = field_text(path[:-1]) or called
            yield path, f"is no field of {what}; allowed: {', '.join(sorted(within.model_fields))}"
        elif error["type"] == FLAW and (not fields or _model_of(fields[-1])):
            # A rule between fields of a model states itself what is allowed.
            yield (*path, *error["ctx"]["at"]), error["ctx"]["wrong"]
        else:
            at = error["ctx"]["at"] if error["type"] == FLAW else ()
            allowed = [field.description for field in fields if field.description]
            yield (*path, *at), "; allowed: ".join([_describe_error(error), *allowed[-1:]])


def _describe_error(error: ErrorDetails) -> str:
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
    """Yield the fields that are present and null."""
    for name, value in fields.items():
        field = model.model_fields.get(name)
        if field is None:
            continue
        inner = _model_of(field)
        if value is None:
            yield (name,), "must not be empty or null; leave it out"
        elif inner and isinstance(value, Mapping):
            yield from (((name, *path), wrong) for path, wrong in nulls(value, inner))


def _fields_along(model: type[BaseModel], path: Path) -> Iterator[FieldInfo]:
    """Yield the fields of models along a path."""
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
    """Return all faults of a document, at most one per path: the first found."""
    faults = list(document.faults)
    paths = {fault.path for fault in faults}
    for path, wrong in flaws:
        if not any(path[:length] in paths for length in range(len(path) + 1)):
            paths.add(path)
            faults.append(document.fault(path, wrong))
    return faults


def shortened(faults: Sequence[str], name: str) -> Sequence[str]:
    """Return the faults, cut to the maximum number."""
    more = len(faults) - MAX_FAULTS
    return [*faults[:MAX_FAULTS], f"{name}: and {more} more faults"] if more > 0 else faults


# --- texts with one model ------------------------------------------------------------------------------


def read_model(
    model: type[AnyModel], text: str | bytes, name: str, *, called: str, bad: type[BadDocument]
) -> AnyModel:
    """Return the model of a YAML or JSON text, or raise `bad` with all faults, by line."""
    from vox_mesh.model.documents.yaml_reader import (
        read_documents,
    )  # loaded on demand: most commands need no parser

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


def build_model(
    model: type[AnyModel], fields: Mapping[str, Any], *, called: str, bad: type[BadDocument]
) -> AnyModel:
    """Return the model of these fields, or raise `bad` with all faults, by path."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise bad(in_words(flaws_of(error.errors(include_url=False), model, f"a {called}"))) from None


def in_words(flaws: Iterable[Flaw]) -> list[str]:
    """Return the faults of fields outside of a text, each with its path."""
    return [f"{field_text(path)}: {wrong}" if path else wrong for path, wrong in flaws]
