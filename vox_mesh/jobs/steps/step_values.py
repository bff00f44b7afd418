"""Values of steps: what a step returns as JSON, and the same type again from it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any, Final, get_type_hints
from weakref import WeakKeyDictionary

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.json_text import read_stored

_PLAIN: Final = frozenset({dict, list, str, int, float, bool, type(None)})
_MAX_ADAPTERS: Final = 512

_UNKNOWN: Final = object()
_return_types: Final[WeakKeyDictionary[FunctionType, Any]] = WeakKeyDictionary()
"""The declared types of functions that were steps: annotations are slow to evaluate."""


class StepValues:
    """Encodes the results of one step, by the type that its function declares."""

    def __init__(self, name: str, returns: Any) -> None:
        self._name = name
        self._adapter = None if returns in (None, Any) or returns in _PLAIN else _adapter(returns)

    @classmethod
    def of(cls, name: str, function: Callable[..., Any], returns: Any) -> StepValues:
        """Return the encoder of a step; `returns` is its type, by default the one that is declared."""
        return cls(name, _declared(function) if returns is None else returns)

    def encode(self, value: Any) -> str:
        """Return a result as canonical JSON. Raises `BadValue` if it has none."""
        if self._adapter is not None:
            try:
                return canonical(self._adapter.dump_python(value, mode="json", warnings="error"))
            except PydanticSerializationError as error:
                raise BadValue(
                    f"step {self._name} returned {type(value).__name__}, not what it declares: {error}"
                ) from None
        if isinstance(value, BaseModel) or is_dataclass(value):
            raise BadValue(
                f"the type of step {self._name} must be known to restore it, got {type(value).__name__}",
                hint=f"annotate what the function returns, or pass returns={type(value).__name__}",
            )
        return canonical(value)

    def decode(self, text: str) -> Any:
        """Return a result as the step has returned it. Raises `BadValue` if its type has changed since."""
        return self.restore(read_stored(text))

    def restore(self, value: Any) -> Any:
        """Return a result of a stored document as the step has returned it; raises as `decode`."""
        if self._adapter is None:
            return value
        try:
            return self._adapter.validate_python(value)
        except ValidationError as error:
            (first, *_) = error.errors()
            raise BadValue(
                f"the stored result of step {self._name} does not fit its type any more: {first['msg']}",
                hint="keep the type compatible, or give the step another name",
            ) from None


def _declared(function: Callable[..., Any]) -> Any:
    """Return the declared type of a function's result, or `None`."""
    target = getattr(function, "func", function)  # of a partial
    if not isinstance(target, FunctionType):
        if not inspect.isroutine(target):
            target = type(target).__call__
        target = getattr(target, "__func__", target)  # of a method
        if not isinstance(target, FunctionType):
            return _return_type(target)
    found = _return_types.get(target, _UNKNOWN)
    if found is _UNKNOWN:
        found = _return_types[target] = _return_type(target)
    return found


def _return_type(function: Any) -> Any:
    try:
        return get_type_hints(function).get("return")
    except (NameError, TypeError, AttributeError):  # annotations of types that exist for checkers only
        return None


@lru_cache(maxsize=_MAX_ADAPTERS)
def _adapter(returns: Any) -> TypeAdapter[Any]:
    return TypeAdapter(returns)
