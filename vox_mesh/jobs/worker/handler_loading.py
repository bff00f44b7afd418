"""Loading handlers: modules of others, named as `module:object`."""

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
    """All handlers of the objects that are named `module:object`; modules of this folder are found, too.

    An object is a `HandlerSet`, or a function that is given one and registers its handlers there. Whatever is
    wrong with one of them is `BadSettings`, on one line.
    """
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    loaded = HandlerSet()
    for name in names:
        found = _handlers_of(name)
        if not found.patterns:
            raise BadSettings(f"{name} has no handlers", hint="register them with @handlers.handles(KIND)")
        try:
            loaded.include(found)
        except MeshError as error:
            raise BadSettings(f"{name}: {error}", hint="name each handler once") from None
    return loaded


def _handlers_of(name: str) -> HandlerSet:
    found = _object(name)
    if isinstance(found, HandlerSet):
        return found
    if not callable(found) or isinstance(found, type) or inspect.iscoroutinefunction(found):
        raise BadSettings(
            f"{name} is {_described(found)}, and has no handlers",
            hint="name a HandlerSet, or a function that is given one and registers its handlers there",
        )
    handlers = HandlerSet()
    try:
        found(handlers)
    except (Exception, SystemExit) as error:
        raise BadSettings(f"{name} failed: {_told(error)}", hint="it is called with a HandlerSet") from error
    return handlers


def _object(name: str) -> Any:
    module, _, path = name.partition(":")
    if not all(each.isidentifier() for each in (*module.split("."), *path.split("."))):
        raise BadSettings(f"{name!r} is not module:object", hint="for example my_handlers:handlers")
    found: Any = _module(module)
    for each in path.split("."):
        try:
            found = getattr(found, each)
        except AttributeError:
            raise BadSettings(
                f"there is no {path} in the module {module}", hint="name a HandlerSet that it has"
            ) from None
    return found


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _broken(name, error) from error
        raise BadSettings(
            f"there is no module {error.name}", hint="it is looked for in this folder and in PYTHONPATH"
        ) from None
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> BadSettings:
    return BadSettings(
        f"the module {name} can't be imported: {_told(error)}", hint="VOX_DEBUG=1 shows where it fails"
    )


def _described(found: Any) -> str:
    if inspect.iscoroutinefunction(found):
        return "an async function"
    return "a class" if isinstance(found, type) else f"of type {type(found).__name__}"


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
