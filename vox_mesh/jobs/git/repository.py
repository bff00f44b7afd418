"""A git repository, read and written by the `git` program. What it holds is data, and runs nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from vox_mesh.errors import BadSettings
from vox_mesh.jobs.git.commits import CommitStream
from vox_mesh.jobs.git.packed_refs import PackedRefs, RefsChanged, job_folder
from vox_mesh.jobs.git.program import GitFailed as GitFailed
from vox_mesh.jobs.git.program import run_git
from vox_mesh.model.jobs.git_refs import NAMESPACE

_MAX_REFS_BYTES: Final = 128 * 2**20
_MAX_MARKS_BYTES: Final = 2**20
_MAX_CHECK_BYTES: Final = 64 * 2**20
_MAX_FLUSHED_REFS: Final = 64
_MIN_COMPRESSED_BYTES: Final = 4_096
_PIECE: Final = 2**16
_SAME_PACK: Final = "keep file"  # packs of the same objects have the same name


class ObjectInfo(NamedTuple):
    """The type of an object, and its size in bytes."""

    type: str
    size: int


class RefUpdate(NamedTuple):
    """A ref that is created, with the new object, or deleted, with the old one; none is ever moved."""

    name: str
    new: str | None = None
    old: str | None = None

    @property
    def command(self) -> str:
        """Return the line that `git update-ref --stdin` reads."""
        return f"create {self.name} {self.new}\n" if self.old is None else f"delete {self.name} {self.old}\n"


class GitRepository:
    """Runs git in a repository. Each call has a deadline and a bound on what it reads."""

    def __init__(self, folder: Path, program: str) -> None:
        self._folder = folder
        self._program = program
        self._packed_refs: PackedRefs | None = None

    @classmethod
    async def open(cls, folder: Path) -> GitRepository:
        """Return the repository of a folder. Raises `BadSettings` without git or a repository.

        Only the current folder may be a subfolder of one: another one was meant to be a repository itself.
        """
        program = shutil.which("git")
        if program is None:
            raise BadSettings("git not found", hint="install git and add it to PATH")
        repository = cls(folder, program)
        try:
            await repository._find_packed_refs()
            is_within = bool((await repository._run("rev-parse", "--show-prefix", limit=_PIECE)).strip())
        except GitFailed as error:
            raise BadSettings(
                f"{folder} is no git repository that can be used: {error}",
                hint="pass --repo DIR, or run `git init` there",
            ) from None
        if is_within and folder != Path():
            raise BadSettings(
                f"{folder} is no git repository, but a folder of one",
                hint="pass the root of the repository as --repo DIR, or run `git init` there",
            )
        return repository

    # --- reading ---------------------------------------------------------------------------------

    async def refs(self) -> dict[str, str]:
        """Return the object ids of all refs of jobs, by name."""
        text = await self._run(
            "for-each-ref", "--format=%(objectname) %(refname)", NAMESPACE, limit=_MAX_REFS_BYTES
        )
        pairs = (line.split(" ", 1) for line in text.decode(errors="replace").splitlines())
        return {name: object_id for object_id, name in pairs}

    async def check(self, names: Sequence[str]) -> list[ObjectInfo | None]:
        """Return the type and size of objects, and `None` for each that does not exist.

        A name is an object id, or that of a commit with the path of a file: `ID:PATH`.
        """
        text = await self._run(
            "cat-file",
            "--batch-check=%(objecttype) %(objectsize)",
            stdin="".join(f"{name}\n" for name in names).encode(),
            limit=_MAX_CHECK_BYTES,
        )
        found = [_info(line) for line in text.decode(errors="replace").splitlines()]
        if len(found) != len(names):
            raise _unexpected_answer()
        return found

    async def read(self, names: Sequence[str], limit: int) -> list[bytes]:
        """Return the contents of objects that exist; `limit`: that of all in bytes, as `check` has them."""
        answer = await self._run(
            "cat-file",
            "--batch=%(objectsize)",
            stdin="".join(f"{name}\n" for name in names).encode(),
            limit=limit + 32 * len(names),
        )
        contents: list[bytes] = []
        at = 0
        try:
            for _ in names:
                line_end = answer.index(b"\n", at)
                start, size = line_end + 1, int(answer[at:line_end])
                contents.append(answer[start : start + size])
                at = start + size + 1
        except ValueError:
            raise _unexpected_answer() from None
        return contents

    # --- writing ---------------------------------------------------------------------------------

    async def write_objects(self, commits: CommitStream) -> dict[int, str]:
        """Write commits and their files, and return the id of each commit by its mark.

        Raises `RefsChanged` if another process is about to write the same objects.
        """
        with tempfile.TemporaryDirectory(prefix="vox-mesh-git-") as folder:
            marks = Path(folder) / "marks"
            # Small files full of hashes are hardly worth it: compressing them takes longer than all else.
            level = () if commits.mean_bytes > _MIN_COMPRESSED_BYTES else ("-c", "pack.compression=0")
            try:
                await self._run(
                    *(*level, "fast-import", "--quiet", "--done", "--date-format=raw"),
                    f"--export-marks={marks}",
                    stdin=commits.finish(),
                    limit=_MAX_MARKS_BYTES,
                )
            except GitFailed as error:
                if _SAME_PACK not in str(error):
                    raise
                raise RefsChanged("another process writes the same jobs", hint="run it again") from None
            lines = (await asyncio.to_thread(marks.read_text)).splitlines()
        pairs = (line.removeprefix(":").split(" ") for line in lines)
        return {int(mark): object_id for mark, object_id in pairs}

    async def change_refs(self, updates: Sequence[RefUpdate]) -> AsyncGenerator[Sequence[RefUpdate], None]:
        """Change refs in one or two transactions, all refs of a job in one; yield the updates of each.

        Raises `RefsChanged` if a ref is not as its update says.
        """
        created, rest = await asyncio.to_thread(self._split, updates)
        if created and not await self._create_packed(created):
            created, rest = [], updates
        if created:
            yield created
        if rest:
            await self.update_refs(rest)
            yield rest

    def _split(self, updates: Sequence[RefUpdate]) -> tuple[list[RefUpdate], Sequence[RefUpdate]]:
        """Return the updates of jobs that can be packed, and the others."""
        if self._packed_refs is None or len(updates) <= _MAX_FLUSHED_REFS:
            return [], updates
        by_git = self._packed_refs.loose(each.name for each in updates)
        by_git |= {job_folder(each.name) for each in updates if each.new is None}
        created = [each for each in updates if job_folder(each.name) not in by_git]
        return created, [each for each in updates if job_folder(each.name) in by_git]

    async def _create_packed(self, updates: Sequence[RefUpdate]) -> bool:
        if self._packed_refs is None:
            return False
        try:
            refs = {each.name: each.new for each in updates if each.new is not None}
            return await asyncio.to_thread(self._packed_refs.create, refs)
        except OSError:  # git names the reason
            return False

    async def _find_packed_refs(self) -> None:
        """Find the file of packed refs, if the refs of the repository are files."""
        folder = await self._run("rev-parse", "--git-common-dir", limit=_PIECE)
        storage = await self._run("config", "--default=files", "--get", "extensions.refStorage", limit=_PIECE)
        if storage.strip() == b"files":
            self._packed_refs = PackedRefs(self._folder / os.fsdecode(folder.removesuffix(b"\n")))

    async def update_refs(self, updates: Sequence[RefUpdate]) -> None:
        """Change refs, all or none. Raises `RefsChanged` if one is not as its update says."""
        if not updates:
            return
        # Each ref is a file. Many are not flushed one by one: an export that was cut off is repeated.
        options = ("-c", "core.fsync=-reference") if len(updates) > _MAX_FLUSHED_REFS else ()
        text = "start\n" + "".join(each.command for each in updates) + "commit\n"
        try:
            await self._run(
                *(*options, "update-ref", "--no-deref", "--stdin"),
                stdin=text.encode(),
                limit=_MAX_MARKS_BYTES,
            )
        except GitFailed as error:
            raise RefsChanged(
                f"the refs were not written: {error}", hint="run it again when no other process writes them"
            ) from None

    async def _run(self, *arguments: str, limit: int, stdin: bytes = b"") -> bytes:
        return await run_git(self._program, self._folder, *arguments, limit=limit, stdin=stdin)


def _info(line: str) -> ObjectInfo | None:
    kind, _, size = line.rpartition(" ")
    return (
        ObjectInfo(kind, int(size)) if kind in ("blob", "commit", "tag", "tree") and size.isdigit() else None
    )


def _unexpected_answer() -> GitFailed:
    return GitFailed("the repository was changed while it was read", hint="run it again")
