"""Packed refs: many refs in one file, none that is lost, and none that was there before."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.support.running.repositories import Repository, new_repository
from vox_mesh.jobs.git import packed_refs
from vox_mesh.jobs.git.packed_refs import PackedRefs, RefsChanged
from vox_mesh.jobs.git.repository import GitRepository, RefUpdate
from vox_mesh.store.files import publish

_JOB: Final = f"refs/gatos/jobs/{'5' * 64}"
_MANIFEST: Final = f"{_JOB}/manifest"
_MANY: Final = 100


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A repository with two commits, and an annotated tag that is packed."""
    repository = new_repository(tmp_path / "repository")
    for name in ("one", "two"):
        repository.git("commit", "--quiet", "--allow-empty", "--message", name)
    repository.git("tag", "--annotate", "--message", "a tag", "tagged")
    repository.git("pack-refs", "--all")
    return repository


def commit(repository: Repository, name: str = "HEAD") -> str:
    """The id of a commit."""
    return repository.git("rev-parse", name).strip()


def packed(repository: Repository) -> PackedRefs:
    """The packed refs of a repository."""
    return PackedRefs(repository.folder / ".git")


def shown(repository: Repository) -> dict[str, str]:
    """All refs, as git shows them."""
    lines = repository.git("for-each-ref", "--format=%(refname) %(objectname)").splitlines()
    return dict(line.split(" ") for line in lines)


def lock_of(repository: Repository) -> Path:
    """The lock of the packed refs."""
    return repository.folder / ".git" / "packed-refs.lock"


def test_git_finds_the_new_refs_and_all_others(repository: Repository) -> None:
    before, head = shown(repository), commit(repository)
    new = {f"refs/gatos/jobs/{number:064x}/manifest": head for number in (2, 15, 1)}
    new |= {f"refs/gatos/jobs/{1:064x}/claims/ed25519-{'a' * 64}": head}
    assert packed(repository).create(new)
    assert shown(repository) == before | new
    assert commit(repository, "tagged^{commit}") == head
    assert not (repository.folder / ".git" / "refs" / "gatos").exists()
    content = (repository.folder / ".git" / "packed-refs").read_text()
    repository.git("pack-refs", "--all")  # writes it again, as git does
    assert (repository.folder / ".git" / "packed-refs").read_text() == content
    assert repository.tried("fsck", "--full", "--strict").returncode == 0
    repository.git("update-ref", "-d", f"refs/gatos/jobs/{2:064x}/manifest", head)
    assert len(shown(repository)) == len(before) + len(new) - 1


@pytest.mark.parametrize(
    "existing",
    [
        *(_MANIFEST, f"{_JOB}/result", f"{_MANIFEST}/below", _JOB, "refs/gatos/jobs", "refs/gatos"),
    ],
)
@pytest.mark.parametrize("is_packed", [True, False], ids=["packed", "loose"])
def test_what_exists_or_is_in_the_way_is_kept_and_nothing_is_written(
    repository: Repository, existing: str, is_packed: bool
) -> None:
    repository.git("update-ref", existing, commit(repository, "HEAD^"))
    if is_packed:
        repository.git("pack-refs", "--all")
    before, head = shown(repository), commit(repository)
    wanted = {_MANIFEST: head, f"{_JOB}/result": head, f"refs/gatos/jobs/{'6' * 64}/manifest": head}
    with pytest.raises(RefsChanged, match="a ref exists already"):
        packed(repository).create(wanted)
    assert shown(repository) == before
    assert not lock_of(repository).exists()


def test_a_ref_that_another_process_creates_at_the_same_moment_stands(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has found that there is none, and writes it only after the file was replaced."""
    theirs, ours = commit(repository, "HEAD^"), commit(repository)
    found: list[int] = []

    def publish_meanwhile(draft: Path, path: Path) -> int:
        command = ["git", "update-ref", "--stdin"]
        with subprocess.Popen(
            command,
            cwd=repository.folder,
            env=repository.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"start\ncreate {_MANIFEST} {theirs}\nprepare\n")
            process.stdin.flush()
            assert [process.stdout.readline() for _ in range(2)] == ["start: ok\n", "prepare: ok\n"]
            size = publish(draft, path)
            process.stdin.write("commit\n")
            process.stdin.close()
            found.append(process.wait(60))
        return size

    monkeypatch.setattr(packed_refs, "publish", publish_meanwhile)
    with pytest.raises(RefsChanged, match="at the same moment"):
        packed(repository).create({_MANIFEST: ours})
    assert (found, shown(repository)[_MANIFEST]) == ([0], theirs)


def test_a_lock_of_another_process_is_waited_for_and_never_removed(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shown(repository)
    lock_of(repository).touch()
    monkeypatch.setattr(packed_refs, "_LOCK_TIMEOUT_S", 0.02)
    with pytest.raises(RefsChanged, match=r"packed-refs\.lock exists"):
        packed(repository).create({_MANIFEST: commit(repository)})
    assert lock_of(repository).exists()
    assert shown(repository) == before


def _unsorted(repository: Repository) -> None:
    file = repository.folder / ".git" / "packed-refs"
    file.write_text(file.read_text().replace("sorted", ""))


def _linked(repository: Repository) -> None:
    file = repository.folder / ".git" / "packed-refs"
    file.symlink_to(file.rename(file.with_name("elsewhere")))


def _of_another_storage(repository: Repository) -> None:
    repository.git("config", "extensions.refStorage", "other")


@pytest.mark.parametrize("change", [_unsorted, _linked, _of_another_storage])
async def test_git_creates_the_refs_that_can_not_be_packed(repository: Repository, change: object) -> None:
    assert callable(change)
    change(repository)
    before, head = shown(repository), commit(repository)
    new = {f"refs/gatos/jobs/{number:064x}/manifest": head for number in range(_MANY)}
    target = await GitRepository.open(repository.folder)
    parts = [part async for part in target.change_refs([RefUpdate(name, new=head) for name in new])]
    assert [len(part) for part in parts] == [_MANY]
    assert shown(repository) == before | new
    assert len([*(repository.folder / ".git" / "refs" / "gatos").rglob("manifest")]) == _MANY


async def test_all_refs_of_a_job_are_changed_together(repository: Repository) -> None:
    """The refs of a job that has a file, or of which one is deleted, are changed by git, in one part."""
    head = commit(repository)
    loose, deleted = (f"refs/gatos/jobs/{number:064x}" for number in (1, 2))
    repository.git("update-ref", f"{loose}/manifest", head)
    repository.git("update-ref", f"{deleted}/claims/ed25519-{'a' * 64}", head)
    repository.git("pack-refs", "--all", "--no-prune")
    new = [RefUpdate(f"refs/gatos/jobs/{number:064x}/manifest", new=head) for number in range(10, 10 + _MANY)]
    by_git = [
        RefUpdate(f"{loose}/result", new=head),
        RefUpdate(f"{deleted}/result", new=head),
        RefUpdate(f"{deleted}/claims/ed25519-{'a' * 64}", old=head),
    ]
    target = await GitRepository.open(repository.folder)
    assert [part async for part in target.change_refs([*by_git, *new])] == [new, by_git]
    assert f"{deleted}/claims/ed25519-{'a' * 64}" not in shown(repository)
    assert len([name for name in shown(repository) if name.startswith("refs/gatos")]) == _MANY + 3
