"""Quick settings: what they read is what `load_settings` reads, and all else is left to it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.runtime.test_settings import BAD, READ, approve
from vox_mesh import Settings, load_settings
from vox_mesh.errors import BadSettings
from vox_mesh.settings import EXAMPLES, variable_of
from vox_mesh.settings.fields import FIELDS
from vox_mesh.settings.quick import quick_settings
from vox_mesh.settings.secrets import SECRET_VARIABLES

_PROPERTIES = ("backend", "file_path", "is_database_elsewhere")
_LEFT = (
    *("VOX_DB_URL", "VOX_MESH_CONTROL_ADDR", "VOX_MESH_NODE", "VOX_MESH_BIND", "VOX_ARCHIVE_URL"),
    *("VOX_BACKUP_URL", "VOX_DB_URLS"),
    *SECRET_VARIABLES,
)
_TEXTS = st.one_of(
    st.sampled_from([text for _, text, _ in READ.values()] + [text for _, text, _ in BAD]),
    st.sampled_from(
        [*EXAMPLES.values(), "", " ", "0", "1", "on", "TRUE", "01", "1.0", "-1", "é", "1e3", "a\tb"]
    ),
    st.integers(-10, 10**10).map(str),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=140),
)
_VARIABLES = st.sampled_from([*EXAMPLES, *(name.lower() for name in EXAMPLES), "TOKEN", "UNKNOWN"])


def values_of(found: Settings) -> dict[str, Any]:
    """All that a command may ask of its settings."""
    values = {name: getattr(found, name) for name in (*Settings.model_fields, *_PROPERTIES)}
    return {**values, "given": set(found.model_fields_set)}


def agree() -> bool:
    """Compare both readers; return whether the quick one read anything."""
    quick = quick_settings()
    if quick is not None:  # then there is no error either
        assert values_of(quick) == values_of(load_settings())
    return quick is not None


def test_both_know_the_same_settings_and_defaults() -> None:
    assert list(FIELDS) == list(Settings.model_fields)
    assert [each.variable for each in FIELDS.values()] == [variable_of(name) for name in FIELDS]
    assert agree()


@pytest.mark.parametrize("variable", READ)
@pytest.mark.parametrize("source", ["environment", ".env", "approved .env"])
def test_a_valid_value_is_read_alike(variable: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = READ[variable][1]
    if source == "environment":
        monkeypatch.setenv(variable, text)
        assert agree() is (variable not in _LEFT)
        return
    Path(".env").write_text(f"{variable}={text}\n")
    if source == "approved .env":
        approve(Path(".env"))
        assert agree() is (variable not in _LEFT)
    else:
        agree()


@pytest.mark.parametrize(("variable", "value", "fault"), BAD)
def test_a_bad_value_is_left_to_the_other(
    variable: str, value: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert quick_settings() is None


@given(st.dictionaries(_VARIABLES, _TEXTS, max_size=3), st.dictionaries(_VARIABLES, _TEXTS, max_size=2))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_values_are_read_alike_or_not_at_all(exported: dict[str, str], written: dict[str, str]) -> None:
    Path(".env").write_text("".join(f"{name}={text!r}\n" for name, text in written.items()))
    with pytest.MonkeyPatch.context() as patch:
        for name, text in exported.items():
            patch.setenv(name, text)
        agree()


def test_secrets_from_files_and_credentials_are_left_to_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOX_DB_TOKEN_FILE", str(tmp_path / "missing"))
    assert quick_settings() is None
    with pytest.raises(BadSettings):
        load_settings()
    monkeypatch.delenv("VOX_DB_TOKEN_FILE")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert quick_settings() is None


_FOLDERS = ("work", "work/repository", "work/repository/src", "linked/src")
_PLACES = st.sampled_from(["", "work", "work/repository", "work/repository/src", "linked", "linked/src"])
_LINES = st.sampled_from(
    [
        "",
        "TURSO_DATABASE_URL=file:app.db",
        "VOX_AGENT_ID=ada",
        "VOX_MESH_ENABLED=1",
        "VOX_MESH_HOME=.vox",
        "VOX_DB_PATH=a.db",
        "VOX_DB_URL=file:a.db",
    ]
)


@given(
    homes=st.dictionaries(_PLACES, st.booleans(), max_size=3),
    files=st.dictionaries(_PLACES, st.tuples(_LINES, st.booleans()), max_size=2),
    is_gone=st.booleans(),
    folder=st.sampled_from(_FOLDERS),
    chosen=st.sampled_from([None, ".vox", "../.vox", "elsewhere"]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_both_find_the_same_mesh_in_any_layout(
    tmp_path: Path,
    homes: dict[str, bool],
    files: dict[str, tuple[str, bool]],
    is_gone: bool,
    folder: str,
    chosen: str | None,
) -> None:
    """A repository, a linked worktree of it, homes with and without `init`, and `.env` files."""
    with tempfile.TemporaryDirectory(dir=tmp_path) as root, pytest.MonkeyPatch.context() as patch:
        base = Path(root)
        for each in _FOLDERS:
            (base / each).mkdir(parents=True, exist_ok=True)
        private = base / "work/repository/.git/worktrees/linked"
        if not is_gone:
            private.mkdir(parents=True)
            (private / "commondir").write_text("../..")
        (base / "linked/.git").write_text(f"gitdir: {private}\n")
        for place, is_made in homes.items():
            (base / place / ".vox").mkdir(mode=0o700)
            if is_made:
                (base / place / ".vox/mesh.json").touch()
        for place, (line, is_trusted) in files.items():
            (base / place / ".env").write_text(line)
            if is_trusted:
                approve(base / place / ".env")
        if chosen is not None:
            patch.setenv("VOX_MESH_HOME", chosen)
        patch.chdir(base / folder)
        agree()
