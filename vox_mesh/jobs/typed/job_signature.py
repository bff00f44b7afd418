"""Signatures of job functions: arguments as a JSON payload and back, and the type of the result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Any, Final, get_type_hints

import orjson
from pydantic import PydanticSchemaGenerationError, PydanticUndefinedAnnotation, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError

from vox_mesh.errors import BadArguments, BadValue
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.model.documents.documents import field_text
from vox_mesh.model.documents.validation import shown

_NAMED: Final = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_PLAIN_RESULTS: Final = (None, type(None), Any)


class JobPayload(dict[str, Any]):
    """The arguments of a job by name, validated and as JSON."""


class JobSignature:
    """The parameters of a job's function, without its context, and the type of its result."""

    def __init__(self, kind: str, function: Callable[..., Any]) -> None:
        """Raises `BadValue` if a job can't have such parameters."""
        self.kind: Final = kind
        hints = _type_hints(kind, function)
        self._called = inspect.signature(function)
        parameters = [*self._called.parameters.values()]
        has_context = bool(parameters) and hints.get(parameters[0].name) is JobContext
        self._context_name = parameters[0].name if has_context else None
        named = parameters[1:] if has_context else parameters
        self._signature = inspect.Signature([_checked(kind, each) for each in named])
        self._adapters = {each.name: _adapter(kind, each.name, hints) for each in named}
        returned = hints.get("return")
        self._result = None if returned in _PLAIN_RESULTS else _adapter(kind, "return", hints)

    # --- arguments -------------------------------------------------------------------------------

    def payload(self, *args: Any, **kwargs: Any) -> JobPayload:
        """Return the payload of a call. Raises `BadArguments`, which names the parameter."""
        try:
            given = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise self._refused([f"call of {self.kind}: {error}"]) from None
        return self.payload_of(given)

    def payload_of(self, arguments: Mapping[str, Any]) -> JobPayload:
        """Return the payload of arguments by name. Raises `BadArguments`, which names the parameter."""
        values = self._validated(arguments, lambda adapter, value: adapter.validate_python(value))
        return JobPayload({name: self._as_json(name, value) for name, value in values.items()})

    def arguments(self, context: JobContext) -> inspect.BoundArguments:
        """Return the arguments of a job. Raises `BadArguments`, which names the parameter."""
        payload = context.payload
        if payload is not None and not isinstance(payload, dict):
            raise self._refused([f"payload of {self.kind} must be an object of arguments by name"])
        values = self._validated(
            payload or {}, lambda adapter, value: adapter.validate_json(orjson.dumps(value))
        )
        given = {name: values[name] for name in self._adapters if name in values}
        if self._context_name is not None:
            given = {self._context_name: context, **given}
        return inspect.BoundArguments(self._called, given)

    def _validated(
        self, given: Mapping[str, Any], validate: Callable[[TypeAdapter[Any], Any], Any]
    ) -> dict[str, Any]:
        """Return the values as the parameters declare them. One that is not given keeps its default."""
        faults = [*self._misnamed(given)]
        values = {}
        for name, adapter in self._adapters.items():
            if name not in given:
                continue
            try:
                values[name] = validate(adapter, given[name])
            except ValidationError as error:
                faults.append(self._fault(name, error.errors(include_url=False)[0]))
        if faults:
            raise self._refused(faults)
        return values

    def _misnamed(self, given: Mapping[str, Any]) -> Iterator[str]:
        yield from (f"{self.kind} has no parameter {name}" for name in given if name not in self._adapters)
        for name, parameter in self._signature.parameters.items():
            if name not in given and parameter.default is Parameter.empty:
                yield f"argument {name} of {self.kind} is missing"

    def _fault(self, name: str, error: ErrorDetails) -> str:
        path = field_text((name, *error["loc"]))
        rule = error["msg"].removeprefix("Input ").replace("should", "must", 1)
        return f"argument {path} of {self.kind}: {rule}, got {shown(error['input'])}"

    def _as_json(self, name: str, value: Any) -> Any:
        try:
            return self._adapters[name].dump_python(value, mode="json", warnings="error")
        except PydanticSerializationError as error:
            raise self._refused([f"argument {name} of {self.kind} has no JSON: {error}"]) from None

    def _refused(self, faults: Sequence[str]) -> BadArguments:
        return BadArguments("; ".join(faults), hint=f"it takes {self}")

    def __str__(self) -> str:
        return str(self._signature)

    # --- results ---------------------------------------------------------------------------------

    def result_as_json(self, value: Any) -> Any:
        """Return a result as JSON. Raises `BadValue` if it is not of the declared type."""
        if self._result is None:
            return value
        try:
            return self._result.dump_python(value, mode="json", warnings="error")
        except PydanticSerializationError as error:
            raise BadValue(
                f"{self.kind} returned {type(value).__name__}, not what it declares: {error}"
            ) from None

    def result(self, value: Any) -> Any:
        """Return a stored result as its function has returned it. Raises `BadValue` if it does not fit."""
        if self._result is None:
            return value
        try:
            return self._result.validate_json(orjson.dumps(value))
        except ValidationError as error:
            (first, *_) = error.errors()
            raise BadValue(
                f"the result of {self.kind} does not fit its declared type: {first['msg']}",
                hint="keep the type of results compatible while jobs have them",
            ) from None


def _type_hints(kind: str, function: Callable[..., Any]) -> dict[str, Any]:
    if not inspect.isfunction(function):
        raise BadValue(f"{kind} must be a function, got {type(function).__name__}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise BadValue(f"{kind} must return its result, and not yield it")
    try:
        return get_type_hints(function, localns={"JobContext": JobContext}, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise BadValue(
            f"the types of {kind} can't be resolved: {error}",
            hint="define them at the top of a module, before the function, and not under TYPE_CHECKING",
        ) from None


def _checked(kind: str, parameter: Parameter) -> Parameter:
    if parameter.kind not in _NAMED:
        raise BadValue(
            f"parameter {parameter} of {kind} must have a name: a payload has its arguments by name",
            hint="take a list or a dict instead of * and **, and leave / out",
        )
    if parameter.annotation is JobContext or parameter.annotation == "JobContext":
        raise BadValue(f"the context of {kind} must be its first parameter, got it as {parameter.name}")
    return parameter


def _adapter(kind: str, name: str, hints: Mapping[str, Any]) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(hints.get(name, Any))
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation) as error:
        what = "result" if name == "return" else f"parameter {name}"
        raise BadValue(
            f"the type of {what} of {kind} can't be validated: {str(error).splitlines()[0]}",
            hint="use types that JSON can hold: plain values, dataclasses, pydantic models",
        ) from None
