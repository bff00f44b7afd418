"""Commands on the pages for operators that no test can run, as they need other machines, at least exist."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click
import pytest

from tests.deploy import command_lines
from tests.deploy.files import ROOT

_PAGES: Final = [ROOT / "docs" / "guides" / name for name in ("operations.md", "turso-cloud.md")]


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.name)
def test_every_command_that_a_page_shows_is_there_with_its_options(page: Path) -> None:
    shown = command_lines.on_page(page)
    assert len(shown) > 10
    for arguments in shown:
        command_lines.check(arguments)


@pytest.mark.parametrize("text", ["vox-mesh nonsense", "vox-mesh db nonsense", "vox-mesh lock"])
def test_a_command_that_is_not_there_would_be_seen(text: str) -> None:
    [arguments] = command_lines.in_shell(text)
    with pytest.raises(AssertionError):
        command_lines.check(arguments)


def test_an_option_that_is_not_there_would_be_seen() -> None:
    [arguments] = command_lines.in_shell(
        'VOX_DB_TOKEN="$(vox-mesh token create --ttl 30d --forever)" && true'
    )
    assert arguments == ["token", "create", "--ttl", "30d", "--forever"]
    with pytest.raises(click.NoSuchOption):
        command_lines.check(arguments)
