"""A git repository, read and written by the `git` program. What it holds is data, and runs nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from vox_mesh.errors import BadSettings, MeshError
from vox_mesh.jobs.git.commits import CommitStream
from vox_mesh.jobs.git.packed_refs import PackedRefs, RefsChanged, job_folder
from vox_mesh.model.jobs.git_refs import NAMESPACE

_TIMEOUT_S: Final = 120.0
_MAX_REFS_BYTES: Final = 128 * 2**20
_MAX_MARKS_BYTES: Final = 2**20
_MAX_CHECK_BYTES: Final = 64 * 2**20
_MAX_ERROR_BYTES: Final = 2**16
_MAX_FLUSHED_REFS: Final = 64
_MIN_COMPRESSED_BYTES: Final = 4_096
_PIECE: Final = 2**16
_MAX_SHOWN: Final = 300
_SAME_PACK: Final = "keep file"  # packs of the same objects have the same name

_OVERRIDES: Final = (
    *("core.hooksPath=/dev/null", "core.fsmonitor=false", "core.logAllRefUpdates=false"),
    *("core.filesRefLockTimeout=2000", "core.packedRefsTimeout=5000"),
    *("protocol.allow=never", "gc.auto=0", "maintenance.auto=false", "credential.helper="),
)
_VARIABLES: Final = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ALLOW_PROTOCOL": "none",  # a missing object of a partial clone is missing: nothing is fetched
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "LC_ALL": "C",
    # Else git's C library may give memory back to the system and take it again for each object it compresses.
    "MALLOC_MMAP_THRESHOLD_": str(4 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(64 * 2**20),
}
_USER_CONFIG: Final = "GIT_CONFIG_GLOBAL"
"""The one variable of git that is passed on: the user's own settings name the folders that they trust."""


class GitFailed(MeshError):
    """A git command failed, or did not end in time."""

    code = "git_failed"


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

    # --- the program -----------------------------------------------------------------------------

    async def _run(self, *arguments: str, limit: int, stdin: bytes = b"") -> bytes:
        """Run git and return its output. Raises `GitFailed` if it fails, hangs or writes too much."""
        command = next(each for each in arguments if each[0].isalpha() and "=" not in each)
        overrides = [part for each in _OVERRIDES for part in ("-c", each)]
        process = await asyncio.create_subprocess_exec(
            *(self._program, *overrides, "-C", str(self._folder), *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(os.environ),
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                output, errors, _ = await asyncio.gather(
                    _read(process.stdout, limit, command),
                    _read_start(process.stderr),
                    _write(process.stdin, stdin),
                )
                code = await process.wait()
        except TimeoutError:
            raise GitFailed(f"git {command} did not end within {_TIMEOUT_S:.0f} s") from None
        finally:
            await _end(process)
        if code != 0:
            raise GitFailed(_message(errors) or f"git {command} ended with {code}")
        return output


async def _read(stream: asyncio.StreamReader | None, limit: int, command: str) -> bytes:
    assert stream is not None
    parts: list[bytes] = []
    size = 0
    while part := await stream.read(_PIECE):
        parts.append(part)
        size += len(part)
        if size > limit:
            raise GitFailed(f"git {command} wrote more than {limit} bytes")
    return b"".join(parts)


async def _read_start(stream: asyncio.StreamReader | None) -> bytes:
    """Read all complaints, and return the first ones."""
    assert stream is not None
    start = b""
    while part := await stream.read(_PIECE):
        start = (start + part)[:_MAX_ERROR_BYTES]
    return start


async def _write(stream: asyncio.StreamWriter | None, content: bytes) -> None:
    assert stream is not None
    with suppress(ConnectionError):  # a program that fails does not read to the end
        for at in range(0, len(content), _PIECE):
            stream.write(content[at : at + _PIECE])
            await stream.drain()
    with suppress(ConnectionError):
        stream.close()
        await stream.wait_closed()


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of git: a hook or a caller may have set others that lead elsewhere."""
    kept = {name: value for name, value in given.items() if not name.startswith("GIT_")}
    if _USER_CONFIG in given:
        kept[_USER_CONFIG] = given[_USER_CONFIG]
    return kept | _VARIABLES


def _message(errors: bytes) -> str:
    """Return what git complained about, on one line."""
    lines = errors.decode(errors="replace").split("\n")
    # The first complaint: what follows is help, or the report of a crash.
    first = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[0])
    shown = "".join(each if each.isprintable() else "?" for each in first.strip())
    return shown.partition(": ")[2][:_MAX_SHOWN] or shown[:_MAX_SHOWN]


def _info(line: str) -> ObjectInfo | None:
    kind, _, size = line.rpartition(" ")
    return (
        ObjectInfo(kind, int(size)) if kind in ("blob", "commit", "tag", "tree") and size.isdigit() else None
    )


def _unexpected_answer() -> GitFailed:
    return GitFailed("the repository was changed while it was read", hint="run it again")
