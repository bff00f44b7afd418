"""Git for agents: a worktree of an allowed repository, and the changes that an agent has made.

An agent may have changed the configuration of the worktree and of its repository, where filters and hooks are
commands. So its files are written and compared through a private repository of the worker, which only borrows
the objects: nothing that an agent can write is run.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from vox_mesh.jobs.agents.errors import AgentFailed, AgentJobRefused
from vox_mesh.jobs.git.program import GitFailed, run_git

MAX_DIFF_BYTES: Final = 16 * 2**20
"""A larger diff is not kept."""

_MAX_NAMES_BYTES: Final = 8 * 2**20
_SMALL: Final = 64 * 1024
_SAFE: Final = ("-c", "diff.ignoreSubmodules=all", "-c", "core.autocrlf=false", "-c", "core.symlinks=true")
_DIFF: Final = ("diff", "--cached", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames")


class WorkChanges(NamedTuple):
    """The changed files as git names their states (`A src/new.py`), and the diff, if it is not too large."""

    files: list[str]
    diff: bytes | None
    problem: str | None = None
    """Why there is no diff."""


class Checkout:
    """The files of one attempt: those of a repository, or only the ones that its job brings."""

    def __init__(self, work: Path, files: Mapping[PurePosixPath, bytes]) -> None:
        self._work = work
        self._files = files
        self._program = shutil.which("git")
        self._repository: Path | None = None
        self._objects: Path | None = None
        self.base: str | None = None
        """The commit of the worktree."""

    async def create(self, repository: Path | None, ref: str, *, is_reused: bool = False) -> None:
        """Create the files, unless an earlier attempt has. Raises `AgentFailed` or `AgentJobRefused`."""
        if repository is not None:
            await self._find(repository, ref)
            if not is_reused:
                await self._add_worktree(repository)
        if not is_reused:
            write_files(self._work, self._files)

    async def _find(self, repository: Path, ref: str) -> None:
        if self._program is None:
            raise AgentFailed("git not found", hint="install git and add it to PATH")
        try:
            common = await self._git("rev-parse", "--git-common-dir", folder=repository)
            found = await self._git(
                *("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"),
                folder=repository,
            )
        except GitFailed as error:
            raise AgentJobRefused(f"{ref!r} of {repository} can't be checked out: {error}") from None
        self._repository = repository
        self._objects = (repository / os.fsdecode(common.removesuffix(b"\n"))).resolve() / "objects"
        self.base = found.decode().strip()

    async def _add_worktree(self, repository: Path) -> None:
        assert self.base is not None
        try:
            await self._git("worktree", "prune", folder=repository)
            await self._git(
                *("worktree", "add", "--no-checkout", "--detach", str(self._work), self.base),
                folder=repository,
            )
            async with self._private() as variables:
                await self._git("read-tree", self.base, variables=variables)
                await self._git("checkout-index", "--all", "--force", variables=variables)
            await self._git("read-tree", self.base)
        except GitFailed as error:
            raise AgentFailed(f"the worktree can't be created: {error}", hint="see the repository") from None

    async def changes(self) -> WorkChanges:
        """Return what the agent has changed. Never raises: a job must not fail because of its diff."""
        if self._program is None:
            return WorkChanges([], None, "git not found")
        try:
            async with self._private() as variables:
                base = self.base or await self._given_tree(variables)
                await self._git("read-tree", base, variables=variables)
                await self._git(*_SAFE, "add", "--all", variables=variables)
                names = await self._git(
                    *(*_DIFF, "--name-status", "-z", base), variables=variables, limit=_MAX_NAMES_BYTES
                )
                files = _changed(names)
                try:
                    diff = await self._git(
                        *(*_DIFF, "--binary", base), variables=variables, limit=MAX_DIFF_BYTES
                    )
                except GitFailed as error:
                    return WorkChanges(files, None, str(error))
                return WorkChanges(files, diff)
        except (GitFailed, OSError) as error:
            return WorkChanges([], None, str(error))

    async def remove(self) -> None:
        """Make the repository forget a worktree whose folder was removed."""
        if self._repository is not None:
            with suppress(GitFailed, OSError):
                await self._git("worktree", "prune", folder=self._repository)

    async def _given_tree(self, variables: Mapping[str, str]) -> str:
        """Return the tree of the files that the job has brought."""
        with tempfile.TemporaryDirectory(prefix="vox-agent-base-") as folder:
            write_files(Path(folder), self._files)
            given = {**variables, "GIT_WORK_TREE": folder}
            await self._git(*_SAFE, "add", "--all", "--force", variables=given, folder=Path(folder))
            return (await self._git("write-tree", variables=given, folder=Path(folder))).decode().strip()

    @asynccontextmanager
    async def _private(self) -> AsyncIterator[dict[str, str]]:
        """Yield the variables that make git use a new repository, which no agent has seen."""
        folder = Path(tempfile.mkdtemp(prefix="vox-agent-git-"))
        place, plain = folder / "private.git", {"GIT_CONFIG_GLOBAL": os.devnull}
        try:
            await self._git(
                "init", "--quiet", "--bare", "--template=", str(place), variables=plain, folder=folder
            )
            if self._objects is not None:
                (place / "objects" / "info").mkdir(exist_ok=True)
                (place / "objects" / "info" / "alternates").write_text(f"{self._objects}\n")
            yield {**plain, "GIT_DIR": str(place), "GIT_WORK_TREE": str(self._work)}
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)  # it may have many objects

    async def _git(
        self,
        *arguments: str,
        folder: Path | None = None,
        variables: Mapping[str, str] | None = None,
        limit: int = _SMALL,
    ) -> bytes:
        assert self._program is not None
        return await run_git(
            self._program, folder or self._work, *arguments, limit=limit, variables=variables
        )


def write_files(folder: Path, files: Mapping[PurePosixPath, bytes]) -> None:
    """Write the files of a job into a folder that no agent has seen, or in which links are not followed."""
    for path, body in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.parent.resolve().is_relative_to(folder.resolve()) or target.is_symlink():
            raise AgentJobRefused(f"files: {str(path)!r} leads out of its folder")
        target.write_bytes(body)


def _changed(names: bytes) -> list[str]:
    words = [each.decode(errors="replace") for each in names.split(b"\0") if each]
    return [f"{state} {path}" for state, path in zip(words[::2], words[1::2], strict=False)]
