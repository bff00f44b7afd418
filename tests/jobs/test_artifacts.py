"""Artifacts: each content once, whole or not at all, and given back only as it was."""

from __future__ import annotations

import asyncio
import os
import resource
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.running.examples import few
from tools.homes import MEMORY
from vox_mesh import Script, Settings, Statement, Store, open_store
from vox_mesh.errors import ArtifactDamaged, ArtifactMissing, ArtifactNotKept, BadValue, NotKnown
from vox_mesh.jobs.proof.artifacts import MAX_INLINE, Artifact, Artifacts
from vox_mesh.jobs.proof.blob_files import BlobStore
from vox_mesh.model.jobs.proof import hash_of

_ROOT: Final = Path(__file__).resolve().parents[2]

SMALL: Final = bytes(range(256)) * 4
LARGE: Final = bytes(range(256)) * 1_024
KIND: Final = "application/octet-stream"


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Store]:
    """A store where it makes no difference by which home."""
    async with await open_store(MEMORY.settings(tmp_path, None)) as store:
        yield store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where artifacts are kept."""
    return tmp_path / "vox" / "artifacts"


@pytest.fixture
def artifacts(local: Store, folder: Path) -> Artifacts:
    """Those of one node."""
    return Artifacts(local, folder, lambda: "node-1")


def place(folder: Path, content_hash: str) -> Path:
    """Where a content belongs."""
    digits = content_hash.removeprefix("blake3:")
    return folder / digits[:2] / digits[2:]


def files(folder: Path) -> list[Path]:
    """All files there are, without that of the lock."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")


async def commit(store: Store, artifacts: Artifacts, *kept: Artifact) -> None:
    """Make artifacts known, as a completed job does."""
    rows = artifacts.rows(kept)
    assert rows is not None
    await store.write(Script(rows))


# --- on every home --------------------------------------------------------------------------------


async def test_what_was_kept_is_given_back_here_and_small_ones_everywhere(
    store: Store, settings: Settings, tmp_path: Path
) -> None:
    here = Artifacts(store, tmp_path / "here", lambda: "node-1")
    there = Artifacts(store, tmp_path / "there", lambda: "node-2")
    empty = await here.keep(b"", name="stdout", type="text/plain")
    small = await here.keep(SMALL, name="small", type=KIND)
    large = await here.keep(LARGE, name="large", type=KIND)
    assert (small.body, large.body) == (SMALL, None)
    await commit(store, here, empty, small, large, small._replace(name="the same again"))
    await commit(store, there, small._replace(type="text/plain"))
    await store.synced()
    for kept, body in ((empty, b""), (small, SMALL), (large, LARGE)):
        assert await here.body(kept.hash) == body
        assert (await here.path(kept.hash)).read_bytes() == body
    assert await there.body(small.hash) == SMALL
    assert (await there.path(small.hash)).read_bytes() == SMALL
    with pytest.raises(ArtifactMissing, match="is on node node-1, not here") as missing:
        await there.body(large.hash)
    assert missing.value.node_id == "node-1"
    rows = await store.read(
        "SELECT hash, size, type, node_id, body IS NULL, created_ms > 0 FROM job_artifacts"
        " WHERE scope_id = ? AND repository_id = ? ORDER BY size",
        (settings.scope_id, settings.repository_id),
    )
    assert [tuple(row) for row in rows] == [
        (empty.hash, 0, "text/plain", "node-1", 0, 1),
        (small.hash, len(SMALL), KIND, "node-1", 0, 1),
        (large.hash, len(LARGE), KIND, "node-1", 1, 1),
    ]


async def test_the_last_node_that_kept_a_file_is_the_one_that_is_named(
    artifacts: Artifacts, local: Store, tmp_path: Path
) -> None:
    other = Artifacts(local, tmp_path / "other", lambda: "node-2")
    stranger = Artifacts(local, tmp_path / "stranger", lambda: "node-3")
    await commit(local, artifacts, await artifacts.keep(LARGE, name="a", type=KIND))
    await commit(local, other, kept := await other.keep(LARGE, name="a", type=KIND))
    with pytest.raises(ArtifactMissing, match="node-2"):
        await stranger.path(kept.hash)
    # One that has the body in hand, of a version with a larger bound, puts it in.
    await commit(local, stranger, kept._replace(body=LARGE))
    assert await stranger.body(kept.hash) == LARGE


async def test_other_repositories_do_not_see_an_artifact(artifacts: Artifacts, local: Store) -> None:
    await commit(local, artifacts, kept := await artifacts.keep(SMALL, name="a", type=KIND))
    await local.write(Script(Statement("UPDATE job_artifacts SET repository_id = 'other'")))
    with pytest.raises(ArtifactMissing, match="no artifact"):
        await artifacts.body(kept.hash)


# --- keeping --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "is_inline"), [(0, True), (MAX_INLINE, True), (MAX_INLINE + 1, False)])
async def test_up_to_the_bound_no_file_is_made(
    artifacts: Artifacts, folder: Path, tmp_path: Path, size: int, is_inline: bool
) -> None:
    body = os.urandom(size)
    source = tmp_path / "source"
    source.write_bytes(body)
    sink = artifacts.sink("a", KIND)
    for each in body:
        sink.write(bytes([each]))
    expected = Artifact("a", hash_of(body), size, KIND, body if is_inline else None)
    assert await artifacts.keep(body, name="a", type=KIND) == expected
    assert await artifacts.keep_file(source, name="a", type=KIND) == expected
    assert await sink.finish() == expected
    assert files(folder) == ([] if is_inline else [place(folder, expected.hash)])


async def test_files_and_folders_are_closed_to_others(artifacts: Artifacts, folder: Path) -> None:
    before = os.umask(0)
    try:
        kept = artifacts.keep_now(LARGE, name="a", type=KIND)
    finally:
        os.umask(before)
    file = place(folder, kept.hash)
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (file, file.parent, folder, folder.parent)]
    assert modes == [0o600, 0o700, 0o700, 0o700]


@few
@given(st.lists(st.binary(max_size=MAX_INLINE), max_size=6), st.integers(0, 2 * MAX_INLINE))
async def test_a_stream_is_cut_at_its_limit_and_says_so(
    artifacts: Artifacts, pieces: list[bytes], limit: int
) -> None:
    whole = b"".join(pieces)
    with artifacts.sink("stdout", "text/plain", limit) as sink:
        for piece in pieces:
            sink.write(piece)
        kept = await sink.finish()
    cut = len(whole) - limit
    reported = f"\n[cut: {cut} more bytes were not kept; the limit is {limit}]\n".encode() if cut > 0 else b""
    body = kept.body if kept.body is not None else await artifacts.body(kept.hash)
    assert body == whole[:limit] + reported
    assert (kept.hash, kept.size) == (hash_of(body), len(body))


async def test_what_is_discarded_or_fails_leaves_nothing(artifacts: Artifacts, folder: Path) -> None:
    sink = artifacts.sink("a", KIND)
    sink.write(LARGE)
    assert len(files(folder)) == 1
    sink.discard()
    with artifacts.sink("b", KIND) as other:
        other.write(LARGE)
        assert len(files(folder)) == 1
    assert files(folder) == []
    for closed in (sink, other):
        with pytest.raises(BadValue, match="finished or discarded"):
            closed.write(b"more")
        with pytest.raises(BadValue, match="finished or discarded"):
            await closed.finish()


async def test_a_finished_sink_is_an_artifact_once(artifacts: Artifacts) -> None:
    with artifacts.sink("a", KIND) as sink:
        sink.write(LARGE)
        kept = await sink.finish()
        with pytest.raises(BadValue, match="finished or discarded"):
            await sink.finish()
    assert await artifacts.body(kept.hash) == LARGE


@pytest.mark.parametrize("name", ["", "a\nb", "a\0", "x" * 256, "\ud800"])
async def test_a_name_that_no_proof_could_tell_is_refused(artifacts: Artifacts, name: str) -> None:
    with pytest.raises(BadValue):
        await artifacts.keep(b"", name=name, type=KIND)
    with pytest.raises(BadValue):
        await artifacts.keep(b"", name="a", type=name)


async def test_only_files_of_a_bounded_size_are_kept(
    artifacts: Artifacts, folder: Path, tmp_path: Path
) -> None:
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    file.write_bytes(LARGE)
    for path, reported in (
        (pipe, "not a file"),
        (tmp_path, "not a file"),
        (tmp_path / "none", "can't be read"),
    ):
        with pytest.raises(BadValue, match=reported):
            await artifacts.keep_file(path, name="a", type=KIND)
    with pytest.raises(BadValue, match="larger than"):
        await artifacts.keep_file(file, name="a", type=KIND, limit=len(LARGE) - 1)
    assert files(folder) == []
    assert (await artifacts.keep_file(file, name="a", type=KIND, limit=len(LARGE))).size == len(LARGE)


async def test_nothing_to_keep_is_no_statement(artifacts: Artifacts) -> None:
    assert artifacts.rows([]) is None


async def test_what_an_artifact_weighs_is_about_what_its_row_takes(artifacts: Artifacts) -> None:
    kept = [await artifacts.keep(os.urandom(size), name="a", type=KIND) for size in (0, 100, MAX_INLINE)]
    rows = artifacts.rows(kept)
    assert rows is not None
    assert rows.weight <= sum(each.weight for each in kept) <= 1.1 * rows.weight + 512 * len(kept)


# --- when the disk does not do its part -----------------------------------------------------------


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """Have the system refuse to let files grow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_full_disk_is_reported_and_leaves_nothing(artifacts: Artifacts, folder: Path) -> None:
    sink = artifacts.sink("a", KIND)
    with no_file_larger_than(len(LARGE) // 2), pytest.raises(ArtifactNotKept) as refused:
        sink.write(LARGE)
    assert refused.value.hint == "free some disk space"
    assert files(folder) == []
    assert (await artifacts.keep(LARGE, name="a", type=KIND)).size == len(LARGE)


async def test_a_folder_that_can_not_be_used_is_reported(local: Store, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    artifacts = Artifacts(local, tmp_path / "file" / "artifacts", lambda: "node-1")
    with pytest.raises(ArtifactNotKept) as refused:
        await artifacts.keep(LARGE, name="a", type=KIND)
    assert "VOX_MESH_HOME" in refused.value.line
    assert (await artifacts.keep(SMALL, name="a", type=KIND)).body == SMALL


@pytest.mark.parametrize("damage", [b"", LARGE[:-1], LARGE + b"x", b"x" + LARGE[1:]], ids=len)
async def test_a_damaged_file_is_reported_never_given_out_and_mended_by_keeping_it_again(
    artifacts: Artifacts, local: Store, folder: Path, damage: bytes
) -> None:
    await commit(local, artifacts, kept := await artifacts.keep(LARGE, name="a", type=KIND))
    place(folder, kept.hash).write_bytes(damage)
    with pytest.raises(ArtifactDamaged, match="was damaged"):
        await artifacts.body(kept.hash)
    with pytest.raises(ArtifactDamaged, match="was damaged"):
        await artifacts.path(kept.hash)
    await artifacts.keep(LARGE, name="a", type=KIND)
    assert await artifacts.body(kept.hash) == LARGE


@pytest.mark.parametrize("damage", ["", "!", "aGVsbG8="])
async def test_a_body_that_was_changed_in_the_database_is_not_given_out(
    artifacts: Artifacts, local: Store, damage: str
) -> None:
    await commit(local, artifacts, kept := await artifacts.keep(SMALL, name="a", type=KIND))
    await local.write(Script(Statement("UPDATE job_artifacts SET body = ?", (damage,))))
    with pytest.raises(ArtifactDamaged, match="in the database"):
        await artifacts.body(kept.hash)


async def test_what_is_not_here_is_reported(artifacts: Artifacts, local: Store, folder: Path) -> None:
    with pytest.raises(NotKnown, match="no artifact"):
        await artifacts.body(hash_of(b"never kept"))
    await commit(local, artifacts, kept := await artifacts.keep(LARGE, name="a", type=KIND))
    place(folder, kept.hash).unlink()
    with pytest.raises(ArtifactMissing, match="its file is gone"):
        await artifacts.path(kept.hash)
    for wrong in (kept.hash.removeprefix("blake3:"), "blake3:../../etc/passwd", kept.hash.upper()):
        with pytest.raises(BadValue, match="a hash must be"):
            await artifacts.body(wrong)


async def test_a_body_too_large_for_its_reader_is_refused(artifacts: Artifacts) -> None:
    kept = await artifacts.keep(LARGE, name="a", type=KIND)
    with pytest.raises(BadValue, match="larger than"):
        await artifacts.body(kept.hash, limit=len(LARGE) - 1)
    assert await artifacts.body(kept.hash, limit=len(LARGE)) == LARGE


# --- many at once, and the ones that are killed ------------------------------------------------------

# Writes the same content again and again, for as long as asked; between writes, at times, it sweeps.
_KEEPING: Final = """
import sys
from pathlib import Path
from vox_mesh.jobs.proof.artifacts import Artifacts
artifacts = Artifacts(None, Path(sys.argv[1]), lambda: "node-1")
for turn in range(10):
    body = bytes(range(256)) * (1_024 + turn % 2)
    assert artifacts.keep_now(body, name="a", type="b").size == len(body)
    artifacts._blobs.sweep()
print("done")
"""

# Sweeps all the time.
_SWEEPING: Final = """
import sys
from pathlib import Path
from vox_mesh.jobs.proof.blob_files import BlobStore
shelves = BlobStore(Path(sys.argv[1]))
print("sweeping", flush=True)
while True:
    shelves.sweep()
"""

# Has written half of it when it says so.
_HALF_WAY: Final = """
import sys
from pathlib import Path
from vox_mesh.jobs.proof.artifacts import Artifacts
sink = Artifacts(None, Path(sys.argv[1]), lambda: "node-1").sink("a", "b")
sink.write(bytes(range(256)) * 1_024)
print("written", flush=True)
sys.stdin.read()
sink.finish_now()
"""


@asynccontextmanager
async def started(code: str, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that runs the code for this folder, and is killed if it has not ended by itself."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, str(folder)),
        stdin=pipe,
        stdout=pipe,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def said(process: asyncio.subprocess.Process) -> bytes:
    """The next line that a process says."""
    assert process.stdout is not None
    return await asyncio.wait_for(process.stdout.readline(), 90)


async def test_many_keep_and_sweep_at_once_and_each_content_is_there_once(
    artifacts: Artifacts, folder: Path
) -> None:
    async with started(_KEEPING, folder) as one, started(_KEEPING, folder) as two:
        kept = await asyncio.gather(*(artifacts.keep(LARGE, name="a", type=KIND) for _ in range(20)))
        assert [await said(process) for process in (one, two)] == [b"done\n"] * 2
    other = bytes(range(256)) * 1_025
    assert {each.hash for each in kept} == {hash_of(LARGE)}
    assert files(folder) == sorted(place(folder, hash_of(body)) for body in (LARGE, other))
    assert await artifacts.body(hash_of(other)) == other


async def test_a_draft_is_never_swept_away_under_its_writer(folder: Path) -> None:
    shelves = BlobStore(folder)
    async with started(_SWEEPING, folder) as process:
        assert await said(process) == b"sweeping\n"
        for turn in range(500):
            draft = shelves.draft()
            assert draft.path.exists(), f"the draft of turn {turn} is gone"
            draft.discard()


async def test_who_is_killed_before_the_end_leaves_nothing_that_counts_and_the_living_are_not_swept(
    artifacts: Artifacts, folder: Path
) -> None:
    async with started(_HALF_WAY, folder) as process:
        assert await said(process) == b"written\n"
        (draft,) = files(folder)
        assert await artifacts.sweep() == 0  # it is alive
        assert files(folder) == [draft]
        process.kill()
        await process.wait()
    with pytest.raises(ArtifactMissing):
        await artifacts.body(hash_of(LARGE))
    own = artifacts.sink("a", KIND)
    own.write(LARGE)
    assert await artifacts.sweep() == 1
    assert draft not in files(folder)
    assert (await own.finish()).hash == hash_of(LARGE)
    assert files(folder) == [place(folder, hash_of(LARGE))]
    assert await artifacts.sweep() == 0
