"""Edits: denied if another agent holds a lock on the path; the agent's own lock is renewed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from vox_mesh.errors import BadValue, LockHeld, MeshError, NotGranted, NotKnown, Refused
from vox_mesh.hosts.hooks.decisions import NOTHING, HookDecision
from vox_mesh.hosts.hooks.events import MAX_PATHS, HookEvent
from vox_mesh.hosts.hooks.options import HookOptions
from vox_mesh.hosts.hooks.sessions import HookSession
from vox_mesh.hosts.hooks.shell import folder_of
from vox_mesh.hosts.hooks.wording import held_reason, quoted
from vox_mesh.locks.file_paths import Project, absolute_paths
from vox_mesh.locks.path_guard import obstacles, obstacles_in_steps, unlocked
from vox_mesh.model.locks.patterns import FILE, normalise
from vox_mesh.model.locks.records import Holder
from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.slices import in_slices

LEASE_S: Final = 600.0
"""The lease of locks that are acquired or renewed for an edit."""

_RENEW_BELOW_S: Final = 540.0
_DOING: Final = "this edit"


def edited_paths(event: HookEvent, options: HookOptions) -> list[str]:
    """Return the paths that an edit changes, relative to the root of its work tree, each once.

    Paths outside of the project are left out. It reads the file system: call it in a thread.
    """
    folder = Path(event.cwd or options.project or "/") / event.folder
    if event.command:  # a patch within a command line
        folder = folder_of(event.command, folder)
    project = Project.at(Path(options.project) if options.project else folder)
    found = (project.paths_of(each) for each in absolute_paths(event.paths, folder))
    return list(dict.fromkeys(path for paths in found for path in paths))


async def check_edit(
    mesh: MeshServices, session: HookSession, event: HookEvent, options: HookOptions
) -> HookDecision:
    """Decide about an edit, and acquire or renew the agent's locks on what it changes."""
    if len(event.paths) > MAX_PATHS:
        reason = (
            f"vox-mesh denied this edit: it must change at most {MAX_PATHS} files, got {len(event.paths)}"
        )
        return HookDecision(denied=f"{reason}. Split it into several edits.")
    if not event.paths:
        return _unreadable(options)
    paths = await asyncio.to_thread(edited_paths, event, options)
    if not paths:
        return NOTHING
    mesh.sightings.note(session.agent, "edit")
    holders = await holders_of(mesh, paths)
    steps = await in_slices(obstacles_in_steps(paths, holders, session.agent))
    if found := [each for some in steps for each in some]:
        return HookDecision(denied=held_reason(found, session.agent, _DOING))
    missing = unlocked(paths, holders, session.agent)
    await _renew(mesh, session.agent, [path for path in paths if path not in missing], holders)
    return await _acquire(mesh, session, missing) if missing and options.auto else NOTHING


async def holders_of(mesh: MeshServices, paths: Sequence[str]) -> list[Holder]:
    """Return the locks that may cover one of these paths; for a folder, all locks."""
    if any(path.endswith("/") for path in paths):
        return await mesh.locks.holders()
    return await mesh.locks.holders_near([path for path in paths if path.isprintable()])


def _unreadable(options: HookOptions) -> HookDecision:
    """Return the decision about an edit whose paths the event does not name."""
    text = "vox-mesh: locks not checked: the event names no path"
    return HookDecision(denied=text) if options.strict else HookDecision(note=text)


async def _renew(mesh: MeshServices, agent: str, paths: Sequence[str], holders: Iterable[Holder]) -> None:
    """Renew the agent's locks on these paths that end soon, whichever node acquired them."""
    due: dict[str, Holder] = {}
    for each in holders:
        is_own = each.holder_agent == agent and each.session_pid is None
        is_due = is_own and each.left_s < _RENEW_BELOW_S
        if is_due and any(not unlocked([path], [each], agent) for path in paths):
            due.setdefault(each.request_id, each)
    for each in due.values():
        with suppress(NotKnown, Refused):  # it has just ended: the next edit finds it free
            await mesh.locks.renew_by_token(each.lock_key, each.fence_token, ttl=LEASE_S)


async def _acquire(mesh: MeshServices, session: HookSession, paths: Sequence[str]) -> HookDecision:
    """Acquire a lock on free paths; deny the edit if another agent was faster, or no grant allows it."""
    agent = session.agent
    try:
        keys = [normalise(FILE + path) for path in paths]
        lock = await mesh.locks.acquire_or_renew(keys, agent=agent, ttl=LEASE_S)
    except BadValue as error:  # the path can be no key: too long, or no Unicode
        return HookDecision(note=f"vox-mesh: not locked: {error}")
    except LockHeld as error:
        return await _lost(mesh, agent, paths, error)
    except NotGranted:
        reason = f"vox-mesh denied this edit: no grant of agent {quoted(agent)} allows it to lock"
        named = ", ".join(map(quoted, paths[:MAX_PATHS]))
        return HookDecision(denied=f"{reason} {named}. Ask the owner of the mesh for a grant.")
    if not lock.is_renewed:
        session.add(lock)
    return NOTHING


async def _lost(mesh: MeshServices, agent: str, paths: Sequence[str], error: MeshError) -> HookDecision:
    """Return the decision if a lock was not acquired: others hold it, or the agent does in another way."""
    holders = await holders_of(mesh, paths)
    found = obstacles(paths, holders, agent)
    if found:
        return HookDecision(denied=held_reason(found, agent, _DOING))
    is_own = any(each.holder_agent == agent for each in getattr(error, "holders", ()))
    if is_own:  # a shared lock, or parts of several: no one else is in its way
        return NOTHING
    return HookDecision(denied=f"vox-mesh denied this edit: {quoted(str(error))}. Try again in a moment.")
