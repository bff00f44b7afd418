"""Commits: denied if another agent holds a lock on a file that they change, as the git guard does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from vox_mesh.hosts.hooks.decisions import NOTHING, HookDecision
from vox_mesh.hosts.hooks.edits import holders_of
from vox_mesh.hosts.hooks.events import HookEvent
from vox_mesh.hosts.hooks.inert_git import InertRepository, open_repository
from vox_mesh.hosts.hooks.options import HookOptions
from vox_mesh.hosts.hooks.sessions import HookSession
from vox_mesh.hosts.hooks.shell import Commit, commits_in
from vox_mesh.hosts.hooks.wording import held_reason
from vox_mesh.jobs.git.program import GitFailed
from vox_mesh.locks.file_paths import Project, work_tree_above
from vox_mesh.locks.path_guard import obstacles_in_steps
from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.slices import in_slices

_COMMON: Final = ("--name-only", "-z", "--no-renames", "--no-ext-diff", "--no-relative")
_DIFF: Final = ("diff-index", *_COMMON, "--ignore-submodules=dirty")
"""Of a submodule, the commit counts: git would run in it to compare its files."""


async def check_commits(
    mesh: MeshServices, session: HookSession, event: HookEvent, options: HookOptions
) -> HookDecision:
    """Decide about a command line that may make commits. Raises `GitFailed` if git can't be asked."""
    folder = Path(event.cwd or options.project or "/") / event.folder
    commits = commits_in(event.command, folder)
    if not commits:
        return NOTHING
    paths = [path for commit in commits for path in await _committed(commit, options)]
    if not paths:
        return NOTHING
    mesh.sightings.note(session.agent, "commit")
    holders = await holders_of(mesh, paths)
    steps = await in_slices(obstacles_in_steps(paths, holders, session.agent))
    found = [each for some in steps for each in some]
    return HookDecision(denied=held_reason(found, session.agent, "this commit")) if found else NOTHING


async def _committed(commit: Commit, options: HookOptions) -> Sequence[str]:
    """Return the paths that a commit changes, relative to the root of the project."""
    if not await asyncio.to_thread(_is_in_repository, commit):
        return []  # git itself refuses
    async with open_repository(commit.folder, commit.variables) as repository:
        listed = await repository.run(repository.tree, *_DIFF, "--cached", repository.head, "--")
        if commit.is_all or commit.pathspecs:
            listed += await _changed(commit, repository)
    names = {path.decode(errors="surrogateescape") for path in listed.split(b"\0") if path}
    return await asyncio.to_thread(_in_project, repository.tree, sorted(names), commit, options)


async def _changed(commit: Commit, repository: InertRepository) -> bytes:
    """Return the changed files that a commit takes, staged or not; all, if those it names can't be found."""
    if commit.pathspecs and not commit.is_all:
        with suppress(GitFailed):
            return await repository.run(commit.folder, *_DIFF, repository.head, "--", *commit.pathspecs)
    return await repository.run(repository.tree, *_DIFF, repository.head, "--")


def _is_in_repository(commit: Commit) -> bool:
    if any(commit.variables.get(name) for name in ("GIT_DIR", "GIT_WORK_TREE")):
        return True
    return work_tree_above(Path(os.path.realpath(commit.folder))) is not None


def _in_project(tree: Path, names: Sequence[str], commit: Commit, options: HookOptions) -> list[str]:
    project = Project.at(Path(options.project) if options.project else commit.folder)
    found = (project.path_of_entry(tree / name) for name in names)
    return [path for path in found if path is not None]
