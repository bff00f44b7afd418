"""Refuse to run a node on a mesh that a cloned or copied folder brought: its jobs are its author's."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from vox_mesh.errors import BadSettings
from vox_mesh.model.base.backends import Backend
from vox_mesh.settings.discovery import FOLDER, IN_GIT_DIR, PLACES, USER
from vox_mesh.store.files import make_private
from vox_mesh.store.slots import spools

if TYPE_CHECKING:
    from vox_mesh.settings import Settings


def make_database(database: Path, home: Path) -> None:
    """Create the empty database of a home that commands can find, noted as this user's own.

    It is noted before it exists under its name: a process that finds it also finds the note.
    """
    if home.name not in (FOLDER, IN_GIT_DIR) or os.path.lexists(database):
        return
    import tempfile  # imported late, as below: databases exist after the first start

    from vox_mesh.settings.own_files import note_as_own

    with suppress(OSError):  # reported when it is opened
        make_private(database.parent.absolute())
        descriptor, name = tempfile.mkstemp(".new", f"{database.name}.", database.parent)
        os.close(descriptor)
        draft = Path(name)
        try:
            note_as_own(database, draft)
            os.link(draft, database)  # fails if another process was first
        finally:
            draft.unlink()


def refuse_foreign_home(settings: Settings) -> None:
    """Raise `BadSettings` if the mesh was found in a folder, and was not made by this user on this machine.

    On a server, a new home is noted as this user's own.
    """
    if (fault := foreign_home_fault(settings)) is not None:
        raise fault
    from vox_mesh.settings.own_files import is_own, note_as_own  # imported late: commands do without

    home = settings.home_dir
    if settings.backend is Backend.SERVER and home.is_dir() and not is_own(home):
        _, is_there = _what_was_made(settings)
        if not is_there:
            note_as_own(home)


def foreign_home_fault(settings: Settings) -> BadSettings | None:
    """Return why a mesh that was found in a folder can't be trusted; `None` if this user made or chose it."""
    from vox_mesh.settings.own_files import is_own  # imported late: commands do without

    made, is_there = _what_was_made(settings)
    if not is_there or is_own(made) or not _is_found(settings):
        return None
    return BadSettings(
        f"{made.absolute()} was not made by you on this machine: its jobs may be another person's",
        hint=f"remove {settings.home_dir}, or approve it with `vox-mesh trust --mesh`",
    )


def _what_was_made(settings: Settings) -> tuple[Path, bool]:
    """Return the database, and whether it exists; on a server the home, and whether writes are kept there.

    Unsent writes in a home would be sent with the user's token.
    """
    home, database = settings.home_dir, settings.file_path
    if settings.backend is Backend.FILE:
        return database, database.exists()
    copies = database.parent.glob(f"{database.name}.replica-*")
    return home, any(spools(home)) or any(copies)


def approve_home(settings: Settings) -> Path:
    """Note the mesh as this user's own, and return its database, or its home if that is on a server."""
    from vox_mesh.settings.own_files import note_as_own

    made = settings.file_path if settings.backend is Backend.FILE else settings.home_dir
    note_as_own(made)
    return made


def _is_found(settings: Settings) -> bool:
    """Return whether the folder chose the home and its database, not the user."""
    from vox_mesh.settings.discovery import DATABASE, locate_mesh
    from vox_mesh.settings.origins import mesh_origin

    try:
        is_found = mesh_origin(settings) in PLACES - {USER} and settings.home_dir == locate_mesh().home
    except BadSettings:  # the settings of the folder were not used
        return False
    return is_found and (
        settings.backend is Backend.SERVER or settings.file_path == settings.home_dir / DATABASE
    )
