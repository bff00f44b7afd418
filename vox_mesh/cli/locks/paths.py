"""Paths as they are typed in a folder, and the lock keys that they mean."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from vox_mesh.errors import BadValue
from vox_mesh.locks.file_paths import path_in, work_tree_above
from vox_mesh.model.locks.key_spelling import TASK, is_path_like, prefix_of
from vox_mesh.model.locks.patterns import FILE

if TYPE_CHECKING:
    from vox_mesh.settings import Settings

_EVERYTHING: Final = "**"
_ROOT_FOLDER: Final = "./"

literal_option: Final = click.option(
    "--literal", is_flag=True, help="Take each KEY literally, as Python does."
)


def keys_of(texts: Iterable[str], settings: Settings, *, literal: bool) -> tuple[str, ...]:
    """Return the keys that are meant by the arguments of a command.

    A bare path is relative to the current folder, a `file:` key to the root of the repository. `literal`: the
    texts are keys already.
    """
    return tuple(texts) if literal else tuple(_key_of(text, settings) for text in texts)


def _key_of(text: str, settings: Settings) -> str:
    prefix = prefix_of(text)
    if prefix == FILE:
        _refuse_if_elsewhere(text, settings)
        return f"{text}/" if _is_folder(text.removeprefix(FILE), settings) else text
    return text if prefix or not text else _key_of_bare_path(text, settings)


def _key_of_bare_path(text: str, settings: Settings) -> str:
    if not is_path_like(text) and not os.path.lexists(text):
        raise BadValue(
            f"key must begin with {FILE} or {TASK}, got {text!r}, and there is no such file here",
            hint=f"write {FILE + text!r} for a path, or {TASK + text!r}",
        )
    return FILE + (path_in(root_of(settings), text, Path.cwd()).removeprefix(_ROOT_FOLDER) or _EVERYTHING)


def _is_folder(path: str, settings: Settings) -> bool:
    """Return whether a path from the root names an existing folder without saying so."""
    if not path or path.endswith("/"):
        return False
    named = root_of(settings) / path
    return named.is_dir() and not named.is_symlink()


def _refuse_if_elsewhere(key: str, settings: Settings) -> None:
    """Raise `BadValue` if the path is absolute or one of the current folder: keys are from the root."""
    path, root = key.removeprefix(FILE), root_of(settings)
    if path.startswith("/"):
        is_elsewhere = Path(path).is_relative_to(root)  # any other absolute path is refused later
    else:
        is_elsewhere = Path.cwd() != root and not os.path.lexists(root / path) and os.path.lexists(path)
    if path and is_elsewhere:
        raise BadValue(
            f"path of a key must be relative to {root}, got {key!r}",
            hint=f"write {FILE + path_in(root, path, Path.cwd())!r}",
        )


def root_of(settings: Settings) -> Path:
    """Return the folder that keys of paths are relative to.

    It is the root of the git work tree; outside of one, the folder of the mesh if it is above the current
    folder, or else the current folder.
    """
    here = Path.cwd()
    if (root := work_tree_above(here)) is not None:
        return root
    of_mesh = (here / settings.home_dir).parent
    return of_mesh if here.is_relative_to(of_mesh) else here
