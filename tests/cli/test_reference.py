"""The help of every command, its examples, and the page that is made of them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from tests.cli.conftest import VoxCommand
from tools import cli_summaries
from tools.cli_reference import PAGE, Listed, listed, page
from vox_mesh.cli.app import app
from vox_mesh.cli.support.output import summary_of

_ALL = list(listed())
_EXAMPLES = [(each.name, example) for each in _ALL for example in each.examples]
_VARIABLE = re.compile(r"[A-Z_]+=\S*")
_BEYOND = re.compile(r" [|>] ")
_GOES_ON_OR_NEEDS_MORE = (
    "server",
    "watch",
    "--watch",
    "--follow",
    "git",
    "guard",
    "restore",
    "recover",
    "recovery-key",
    "accept-ownership",
    "run",
    "send",
    "sync",
    "verify",
    "up",
    "scopes",
    "--all-scopes",
    "top",
)


def words(example: str) -> list[str]:
    """What our command is given in it."""
    typed = shlex.split(_BEYOND.split(example)[0])
    while _VARIABLE.fullmatch(typed[0]):
        del typed[0]
    assert typed.pop(0) == "vox-mesh", example
    return typed


def test_the_page_says_what_the_commands_say() -> None:
    assert PAGE.read_text() == page(), "run `python -m tools.cli_reference`"


def test_the_table_of_summaries_is_up_to_date() -> None:
    assert cli_summaries.MODULE.read_text() == cli_summaries.module(), "run `python -m tools.cli_summaries`"


@pytest.mark.parametrize("command", _ALL, ids=lambda each: each.name)
def test_every_command_says_what_it_does_and_shows_how(command: Listed) -> None:
    first = command.help.partition("\n\n")[0]
    assert re.fullmatch(r"[A-Z].*[.:]", first, re.DOTALL), first
    for option, about in command.options:
        assert re.search(r"[.\])]$", about), f"{option}: {about!r} is no sentence"
        assert "INTEGER RANGE" not in option, f"{option} needs a metavar"
    if not command.is_only_a_noun:
        assert command.examples
    for example in command.examples:
        assert command.name in example or not command.path


@pytest.mark.parametrize("command", _ALL, ids=lambda each: each.name)
def test_a_summary_is_short_and_never_cut_off(command: Listed) -> None:
    summary = summary_of(command.command)
    assert len(summary) <= 60
    assert f"{summary}." == " ".join(command.help.partition("\n\n")[0].split())
    if isinstance(command.command, click.Group):
        narrow = click.HelpFormatter(width=40)
        command.command.format_commands(command.context, narrow)
        assert "..." not in narrow.getvalue()


@pytest.mark.parametrize(("name", "example"), _EXAMPLES, ids=[name for name, _ in _EXAMPLES])
def test_every_example_is_one_that_its_command_takes(name: str, example: str, tmp_path: Path) -> None:
    given = words(example)
    for file in ("mesh-2026-01-31.db", "bundle.json", "log.jsonl"):
        if file in given and not {"backup", "export", "bundle"} & set(given):
            (tmp_path / file).touch()
    command: click.Command = app
    context = app.make_context("vox-mesh", given)
    while isinstance(command, click.Group) and context._protected_args + context.args:
        verb, found, given = command.resolve_command(context, context._protected_args + context.args)
        assert found is not None, example
        command, context = found, found.make_context(verb, given, parent=context)
    assert context.command_path == name or not name.partition(" ")[2]


def test_the_examples_that_only_look_can_be_run_as_they_are(vox: VoxCommand) -> None:
    assert vox("db", "init").code == 0
    ran = 0
    for name, example in _EXAMPLES:
        command = next(each for each in _ALL if each.name == name)
        takes = [each for each in command.command.params if isinstance(each, click.Argument)]
        if takes or _BEYOND.search(example) or set(words(example)) & set(_GOES_ON_OR_NEEDS_MORE):
            continue
        ended = vox(*words(example))
        assert ended.code in (0, 1), (example, ended)
        assert "Traceback" not in ended.err
        ran += 1
    assert ran >= 15
