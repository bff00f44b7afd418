"""Load handlers from user modules, named as `module:object`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from vox_mesh.errors import BadSettings, MeshError
from vox_mesh.jobs.worker.handlers import HandlerSet


def load_handlers(names: Iterable[str]) -> HandlerSet:
    """Return all handlers of the objects named `module:object`; the current folder is searched too.

    An object is a `HandlerSet`, or a function that takes one and registers its handlers.
    Raises `BadSettings` for an object that can't be loaded or has no handlers.
    """
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    loaded = HandlerSet()
    for name in names:
        handlers = _load(name)
        if not handlers.patterns:
            raise BadSettings(f"{name} has no handlers", hint="register them with @handlers.handles(KIND)")
        try:
            loaded.include(handlers)
        except MeshError as error:
            raise BadSettings(f"{name}: {error}", hint="name each handler once") from None
    return loaded


def _load(name: str) -> HandlerSet:
    target = _import_object(name)
    if isinstance(target, HandlerSet):
        return target
    if not callable(target) or isinstance(target, type) or inspect.iscoroutinefunction(target):
        raise BadSettings(
            f"{name} is {_describe_type(target)}, and has no handlers",
            hint="name a HandlerSet, or a function that is given one and registers its handlers there",
        )
    handlers = HandlerSet()
    try:
        target(handlers)
    except (Exception, SystemExit) as error:
        raise BadSettings(
            f"{name} failed: {_describe(error)}", hint="it is called with a HandlerSet"
        ) from error
    return handlers


def _import_object(name: str) -> Any:
    module, _, path = name.partition(":")
    if not all(each.isidentifier() for each in (*module.split("."), *path.split("."))):
        raise BadSettings(f"{name!r} is not module:object", hint="for example my_handlers:handlers")
    target: Any = _import_module(module)
    for each in path.split("."):
        try:
            target = getattr(target, each)
        except AttributeError:
            raise BadSettings(
                f"there is no {path} in the module {module}", hint="name a HandlerSet that it has"
            ) from None
    return target


def _import_module(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _import_failure(name, error) from error
        raise BadSettings(
            f"there is no module {error.name}", hint="it is looked for in this folder and in PYTHONPATH"
        ) from None
    except (Exception, SystemExit) as error:
        raise _import_failure(name, error) from error


def _import_failure(name: str, error: BaseException) -> BadSettings:
    return BadSettings(
        f"the module {name} can't be imported: {_describe(error)}",
        hint="VOX_DEBUG=1 shows where it fails",
    )


def _describe_type(target: Any) -> str:
    if inspect.iscoroutinefunction(target):
        return "an async function"
    return "a class" if isinstance(target, type) else f"of type {type(target).__name__}"


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
