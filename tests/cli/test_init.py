"""One mesh per repository: `init` creates it, all worktrees and subfolders find it."""

from __future__ import annotations

import sqlite3
import subprocess
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.cli.conftest import VoxCommand
from tests.support.running.repositories import GIT_SETTINGS, Repository, new_repository
from vox_mesh.settings.discovery import ABOVE, HERE, REPOSITORY, USER, locate_mesh


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A repository with one commit."""
    made = new_repository(tmp_path / "main", VoxCommand(tmp_path, **GIT_SETTINGS).environment)
    made.settle("src/lib.rs")
    return made


def commands(folder: Path, **variables: str) -> VoxCommand:
    """Commands in a folder, with no setting at all."""
    folder.mkdir(parents=True, exist_ok=True)
    return VoxCommand(folder, **GIT_SETTINGS, **variables)


def git(folder: Path, *arguments: str) -> str:
    """Run git."""
    env = VoxCommand(folder, **GIT_SETTINGS).environment
    return subprocess.run(
        ["git", *arguments], cwd=folder, env=env, check=True, capture_output=True, text=True
    ).stdout


def located(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """The mesh that is found in a folder."""
    monkeypatch.chdir(folder)
    found = locate_mesh()
    return found.home.absolute(), found.place


def test_worktrees_and_subfolders_share_one_mesh_and_a_clone_has_none(
    repository: Repository, tmp_path: Path
) -> None:
    main, linked = repository.folder, tmp_path / "linked"
    git(main, "worktree", "add", "-q", str(linked))
    git(tmp_path, "clone", "-q", str(main), "clone")
    made = commands(linked / "src")("init", "--json").document
    assert (made["mesh"], made["mesh_from"], made["done"]) == (str(main / ".vox"), REPOSITORY, "created")
    # Three agents, in both worktrees and a subfolder, race for one file.
    with ExitStack() as racing:
        places = (main, linked, main / "src")
        racers = [
            racing.enter_context(
                commands(each).launch("lock", "acquire", "file:src/lib.rs", "--agent", f"a{number}")
            )
            for number, each in enumerate(places)
        ]
        for racer in racers:
            racer.communicate(60)
        codes = sorted(racer.wait() for racer in racers)
    assert codes == [0, 1, 1]
    refused = commands(tmp_path / "clone")("lock", "acquire", "file:src/lib.rs", "--agent", "late")
    assert (refused.code, "this folder or repository has none; run `vox-mesh init`" in refused.error) == (
        2,
        True,
    )
    assert not (tmp_path / "clone/.vox").exists()
    assert git(main, "status", "--porcelain") == ""


def test_init_says_in_two_lines_what_it_made_and_what_to_do_next(tmp_path: Path) -> None:
    vox = commands(tmp_path / "work")
    made = vox("init")
    home, database = tmp_path / "work/.vox", ".vox/cache/db/local.db"
    assert made.out == f"created mesh {home} (database {database})\n"
    assert (made.err.count("\n"), "next: `vox-mesh lock acquire" in made.err) == (1, True)
    assert vox("init").out == f"checked mesh {home} (database {database})\n"
    shown = {line.split()[0] for line in vox("init", "-v").out.splitlines()}
    assert shown == vox("init", "--json").document.keys()


def test_commands_name_the_mesh_the_sources_and_a_second_mesh(repository: Repository, tmp_path: Path) -> None:
    git(repository.folder, "worktree", "add", "-q", str(tmp_path / "linked"))
    vox = commands(repository.folder / "src", VOX_AGENT_ID="ada")
    assert vox("init").code == 0
    status = vox("db", "status", "--json").document
    sources = {each["setting"]: each["from"] for each in status["settings"]}
    assert (status["mesh"], status["mesh_from"]) == (str(repository.folder / ".vox"), ABOVE)
    assert sources == {
        "VOX_AGENT_ID": "the environment",
        "VOX_DB_PATH": ABOVE,
        "VOX_MESH_ENABLED": "vox-mesh init",
        "VOX_MESH_HOME": ABOVE,
    }
    second = commands(tmp_path / "linked")("init", "--here")
    assert (second.code, "warning: second mesh in this repository" in second.err) == (0, True)
    printed = vox("lock", "acquire", "file:a", "-v").err
    assert f"mesh: {repository.folder / '.vox'}, from {ABOVE}" in printed
    assert f"warning: second mesh in this repository: {tmp_path / 'linked/.vox'}" in printed
    checks = {each["check"]: each for each in vox("doctor", "--json").document}
    assert (checks["mesh"]["state"], str(tmp_path / "linked/.vox") in checks["mesh"]["found"]) == (
        "warn",
        True,
    )
    assert "VOX_AGENT_ID from the environment" in checks["sources"]["found"]


def test_an_application_with_variables_of_turso_is_left_alone(tmp_path: Path) -> None:
    """Neither from its `.env`, nor exported for it, does the mesh move into its database."""
    app = tmp_path / "app.db"
    with closing(sqlite3.connect(app)) as database:
        database.execute("CREATE TABLE customers (name TEXT)")
    before = app.read_bytes()
    vox = commands(tmp_path / "app")
    (vox.folder / ".env").write_text(f"TURSO_DATABASE_URL=file:{app}\nTURSO_AUTH_TOKEN=of-the-app\n")
    assert vox("init", "--json").document["address"] == ".vox/cache/db/local.db"
    assert vox("lock", "acquire", "task:1", "--agent", "ada").code == 0
    checks = {each["check"]: each for each in vox("doctor", "--json").document}
    assert "TURSO_AUTH_TOKEN, TURSO_DATABASE_URL in .env not used" in checks["sources"]["found"]
    exported = vox.having(TURSO_DATABASE_URL=f"file:{app}")
    for command in ("init", "lock list", "db status", "up --once --no-http"):
        refused = exported(*command.split())
        assert (refused.code, "tables of another application and no mesh: customers" in refused.err) == (
            2,
            True,
        )
    assert app.read_bytes() == before
    assert exported("db", "init", "--json").document["done"] == "created"  # asked for by name


def test_a_foreign_database_in_wal_mode_gets_no_files_next_to_it(tmp_path: Path) -> None:
    app = tmp_path / "app.db"
    with closing(sqlite3.connect(app)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE customers (name TEXT)")
        vox = commands(tmp_path / "app", VOX_MESH_ENABLED="1", VOX_DB_PATH=str(app))
        assert "tables of another application" in vox("lock", "list").error  # open, with a log
        found = {each.name for each in tmp_path.glob("app.db*")}
    assert found == {"app.db", "app.db-wal", "app.db-shm"}
    assert "tables of another application" in vox("lock", "list").error
    assert {each.name for each in tmp_path.glob("app.db*")} == {"app.db"}


def test_the_env_file_of_the_mesh_counts_in_subfolders_and_worktrees(
    repository: Repository, tmp_path: Path
) -> None:
    main, linked = repository.folder, tmp_path / "linked"
    git(main, "worktree", "add", "-q", str(linked))
    root = commands(main)
    assert root("init").code == 0
    (main / ".env").write_text("VOX_DB_PATH=shared/mesh.db\nVOX_MESH_REPOSITORY_ID=website\n")
    for folder in (main / "src", linked):
        refused = commands(folder)("lock", "list")
        hint = f"{main / '.env'} sets VOX_DB_PATH: not used, because you have not approved this file; "
        assert (refused.code, f"{hint}read it, then run `vox-mesh trust` in {main}" in refused.error) == (
            2,
            True,
        )
    assert root("trust").code == 0
    for folder in (main, main / "src", linked):
        status = commands(folder)("db", "status", "--json").document
        assert (Path(folder, status["address"]).resolve(), status["repository_id"]) == (
            main / "shared/mesh.db",
            "website",
        )
    assert {each["setting"]: each["from"] for each in status["settings"]}["VOX_DB_PATH"] == str(main / ".env")
    # The file of the current folder comes first, and a variable before both.
    (linked / ".env").write_text("VOX_MESH_REPOSITORY_ID=draft\n")
    assert commands(linked)("db", "status", "--json").document["repository_id"] == "draft"
    exported = commands(linked, VOX_MESH_REPOSITORY_ID="mine")
    assert exported("db", "status", "--json").document["repository_id"] == "mine"


def test_a_mesh_made_by_init_is_enabled_unless_a_variable_says_no(tmp_path: Path) -> None:
    vox = commands(tmp_path / "plain")
    assert vox("lock", "list").code == 2
    assert list(vox.folder.iterdir()) == []
    assert vox("init", "--json").document["mesh_from"] == HERE
    assert (vox.folder / ".vox/.gitignore").read_text() == "*\n"
    assert vox("init", "--json").document["done"] == "checked"
    assert commands(vox.folder / "below")("lock", "list").code == 0
    off = vox.having(VOX_MESH_ENABLED="0")
    assert "VOX_MESH_ENABLED=0 turns it off" in off("lock", "list").error
    assert "VOX_MESH_ENABLED is 0 in the environment" in off("init").err
    # Outside of any mesh, that of the user.
    elsewhere = commands(tmp_path / "elsewhere", XDG_DATA_HOME=str(tmp_path / "data"))
    assert elsewhere("init", "--user", "--json").document["mesh"] == str(tmp_path / "data/vox-mesh")
    assert elsewhere("lock", "list").code == 0
    assert list(elsewhere.folder.iterdir()) == []


def test_a_home_without_init_is_kept_out_of_git_too(repository: Repository) -> None:
    vox = commands(repository.folder, VOX_MESH_ENABLED="1")
    assert vox("up", "--once", "--no-http").code == 0
    assert list(repository.folder.glob(".vox/slots/*/key.pem"))
    assert git(repository.folder, "status", "--porcelain") == ""
    # A repository that an earlier version made a home is not hidden from git.
    (repository.folder / "slots").mkdir(mode=0o700)
    root = vox.having(VOX_MESH_HOME=".", VOX_DB_PATH=".vox/a.db")
    assert root("up", "--once", "--no-http").code == 0
    assert not (repository.folder / ".gitignore").exists()


# --- discovery -----------------------------------------------------------------------------------


def test_a_bare_repository_has_its_mesh_inside(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    git(tmp_path, "clone", "-q", "--bare", str(repository.folder), str(project / ".bare"))
    (project / ".git").write_text("gitdir: ./.bare\n")
    git(project, "worktree", "add", "-q", "feature")
    expected = project / ".bare/vox", REPOSITORY
    for folder in (project, project / "feature", project / ".bare", project / ".bare/refs"):
        assert located(folder, monkeypatch) == expected


def test_the_mesh_of_the_repository_comes_before_one_above_it(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked = tmp_path / "space" / "linked"
    git(repository.folder, "worktree", "add", "-q", str(linked))
    (tmp_path / "space/.vox").mkdir(mode=0o700)
    assert located(linked, monkeypatch) == (tmp_path / "space/.vox", ABOVE)
    (repository.folder / ".vox").mkdir(mode=0o700)
    assert located(linked, monkeypatch) == (repository.folder / ".vox", REPOSITORY)
    (linked / ".vox").mkdir(mode=0o700)
    assert located(linked, monkeypatch) == (linked / ".vox", HERE)


def test_the_search_ends_at_the_home_of_the_user_and_where_everyone_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    user = tmp_path / ".data/vox-mesh", USER
    below = tmp_path / "open" / "below"
    below.mkdir(parents=True)
    (tmp_path / ".vox").mkdir(mode=0o700)
    (tmp_path / ".git").mkdir()  # a repository of dotfiles
    assert located(below, monkeypatch) == user
    (tmp_path / ".vox/mesh.json").touch()
    assert located(below, monkeypatch) == (tmp_path / ".vox", ABOVE)
    (tmp_path / "open/.vox").mkdir(mode=0o700)
    assert located(below, monkeypatch) == (tmp_path / "open/.vox", ABOVE)
    (tmp_path / "open").chmod(0o1777)
    assert located(below, monkeypatch) == user


def test_a_worktree_whose_repository_is_gone_gets_no_mesh_of_its_own(tmp_path: Path) -> None:
    vox = commands(tmp_path / "lost")
    (vox.folder / ".git").write_text("gitdir: /nonexistent/.git/worktrees/lost\n")
    for command in (vox, ("init",)), (vox.having(VOX_MESH_ENABLED="1"), ("lock", "list")):
        refused = command[0](*command[1])
        assert (refused.code, "git worktree repair" in refused.error) == (2, True)
    assert not (vox.folder / ".vox").exists()


def test_the_root_of_a_repository_is_not_taken_for_a_home(repository: Repository) -> None:
    root = repository.folder
    before = sorted(each.name for each in root.iterdir())
    vox = commands(root, VOX_MESH_HOME=str(root))
    for command in ("init", "status", "doctor"):
        refused = vox(command)
        assert refused.code == 2
        assert f"set VOX_MESH_HOME={root / '.vox'}" in refused.err
        assert "chmod" not in refused.out + refused.err
    assert sorted(each.name for each in root.iterdir()) == before
    assert vox.having(VOX_MESH_HOME=str(root / ".vox"))("init").code == 0


def test_a_database_under_the_current_folder_stays_in_use(tmp_path: Path) -> None:
    vox = VoxCommand.with_home(tmp_path, VOX_MESH_HOME=str(tmp_path / "elsewhere"))
    new = vox("db", "init", "--json").document["address"]
    assert new == str(tmp_path / "elsewhere/cache/db/local.db")
    earlier = vox.having(VOX_MESH_HOME=str(tmp_path / "another"))
    (tmp_path / ".vox/cache/db").mkdir(parents=True, mode=0o700)
    assert earlier("db", "init", "--json").document["address"] == ".vox/cache/db/local.db"
