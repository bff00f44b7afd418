"""`.env.example`: it names every variable, shows the defaults, and can be used unchanged."""

from __future__ import annotations

import re
from pathlib import Path

from tests.runtime.test_settings import approve
from tools import settings_reference
from vox_mesh import Settings, load_settings
from vox_mesh.settings import load_process_settings, variable_of

TEXT = (Path(__file__).resolve().parents[2] / ".env.example").read_text()
_FOUND = {"enabled", "home_dir", "db_path"}
"""Settings whose default depends on the mesh that is found."""
LINE = re.compile(r"^(#?)([A-Z_]+)=(.*)$", re.MULTILINE)


def test_it_names_exactly_the_variables_that_there_are() -> None:
    named = [name for _, name, _ in LINE.findall(TEXT)]
    assert sorted(named) == sorted(variable_of(field) for field in Settings.model_fields)


def test_what_it_sets_are_the_defaults() -> None:
    Path(".env").write_text(TEXT)
    assert load_settings() == Settings(_env_file=None)


def test_what_has_a_default_is_set_and_what_has_none_is_an_example() -> None:
    commented = {name for mark, name, _ in LINE.findall(TEXT) if mark}
    for field, info in Settings.model_fields.items():
        is_unset = info.default in (None, "") or field in _FOUND
        assert (variable_of(field) in commented) is is_unset, field


def test_every_example_in_it_is_valid() -> None:
    Path(".env").write_text(LINE.sub(r"\2=\3", TEXT))
    approve(Path(".env"))
    settings = load_process_settings()
    assert settings.in_scope("acme").db_url == "libsql://acme.example.com"
    assert settings.node_id is not None
    assert settings.db_token is not None


def test_every_variable_is_explained() -> None:
    lines = TEXT.splitlines()
    for index, line in enumerate(lines):
        if LINE.match(line):
            assert re.match(r"# \w", lines[index - 1]), line


def test_it_names_the_second_names() -> None:
    assert "TURSO_DATABASE_URL" in TEXT
    assert "TURSO_AUTH_TOKEN" in TEXT


def test_the_page_of_settings_is_what_it_says() -> None:
    assert settings_reference.page() == settings_reference.PAGE.read_text(), (
        "run `python -m tools.settings_reference`"
    )
