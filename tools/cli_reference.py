"""Generate docs/reference/cli.md, the reference of all commands, from the commands themselves.

`python -m tools.cli_reference` writes it; with `--check` it only says whether the page is up to date.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Final

import click

from vox_mesh.cli.app import NAME, app

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"

_JSON: Final = "as_json"
_EXAMPLE: Final = re.compile(r"^Examples?:\n((?:[ ]{2}.*(?:\n|$))+)", re.MULTILINE)
_INDENTED: Final = re.compile(r"(?:^  .*(?:\n|$))+", re.MULTILINE)
_HEAD: Final = """# The command line

<!-- Written by `python -m tools.cli_reference` from the commands' own help. Do not edit. -->

`vox-mesh NOUN VERB`. Every command prints its part of this page with `--help` or `-h`. Settings come from
`VOX_*` variables or a `.env` file in the current folder; `vox-mesh doctor` checks them. With `--json`, stdout
has one JSON document and nothing else: one record is an object, several are an array. Logs and errors go to
stderr; an error is one line with its cause, a hint and its [code](errors.md), with `--json` one document with
`code`, `message`, `hint`, `retryable` and `exit_code`. On a terminal, states are coloured (not with
`NO_COLOR`) and tables fit the width. Durations are written `500ms`, `30s`, `5m`, `1h30m`, in ISO 8601, or as
seconds. `vox-mesh completion` makes your shell complete commands and options.

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | a negative answer: not acquired, not found, refused, broken |
| 2 | wrong usage or settings: also a refused token, a schema too new, a folder that can't be written |
| 3 | could not ask: the database is unreachable, or the circuit is open |
| 4 | nothing new: `job schedule --once` found the same job, and it was not run again |
| 130, 141 | interrupted; the reader of the output has exited |

`vox-mesh lock run` ends with the exit code of the command it runs, with 126 or 127 if that can't be run, and
with 128 and the number of the signal that killed it. 70 is an internal error: please report it. Other
meanings of a code are described with their command.
"""


@dataclass(frozen=True)
class Listed:
    """A command in the reference."""

    path: tuple[str, ...]
    command: click.Command
    context: click.Context

    @property
    def name(self) -> str:
        """The command without its arguments."""
        return " ".join((NAME, *self.path))

    @property
    def is_only_a_noun(self) -> bool:
        """Whether it needs a verb."""
        return isinstance(self.command, click.Group) and not self.command.invoke_without_command

    @property
    def help(self) -> str:
        """Its help, without the examples."""
        return _EXAMPLE.sub("", self._text).strip()

    @property
    def examples(self) -> list[str]:
        """The commands that its help shows."""
        found = _EXAMPLE.search(self._text)
        return [] if found is None else [line.strip() for line in found[1].splitlines()]

    @property
    def options(self) -> list[tuple[str, str]]:
        """Its options and their descriptions, except for --json, which is the same everywhere."""
        own = (each for each in self.command.params if isinstance(each, click.Option) and each.name != _JSON)
        written = (each.get_help_record(self.context) for each in own)
        return [each for each in written if each is not None]

    @property
    def usage(self) -> str:
        """Its arguments."""
        pieces = [piece for piece in self.command.collect_usage_pieces(self.context) if piece != "[OPTIONS]"]
        has_json = any(each.name == _JSON for each in self.command.params)
        optional = ["[OPTIONS]"] * bool(self.options) + ["[--json]"] * has_json
        return " ".join((self.name, *optional, *pieces))

    @property
    def _text(self) -> str:
        return inspect.cleandoc(self.command.help or "").replace("\b\n", "")


def listed(command: click.Command = app, parent: click.Context | None = None) -> Iterator[Listed]:
    """Return all commands, each noun before its verbs, by name."""
    name = NAME if parent is None else str(command.name)
    context = click.Context(command, parent=parent, info_name=name)
    yield Listed(tuple(context.command_path.split()[1:]), command, context)
    if isinstance(command, click.Group):
        for each in sorted(command.list_commands(context)):
            inner = command.get_command(context, each)
            assert inner is not None
            yield from listed(inner, context)


def page() -> str:
    """Return the reference."""
    _, *commands = listed()
    nouns = [each.path[0] for each in commands if len(each.path) == 1]
    links = " · ".join(f"[{noun}](#{noun})" for noun in nouns)
    return "\n".join((_HEAD, links, *(_section(each) for each in commands))).rstrip() + "\n"


def _section(each: Listed) -> str:
    lines = ["", f"## {each.path[0]}"] if len(each.path) == 1 else []
    if each.is_only_a_noun:
        return "\n".join((*lines, "", _shown(each.help)))
    if len(each.path) > 1:
        lines += ["", f"### {' '.join(each.path)}"]
    lines += ["", f"`{each.usage}`", "", _shown(each.help)]
    if each.options:
        lines += ["", "| option | |", "| --- | --- |"]
        lines += [f"| `{_cell(option)}` | {_cell(_shown(about))} |" for option, about in each.options]
    lines += ["", "```sh", *each.examples, "```"]
    return "\n".join(lines)


def _shown(text: str) -> str:
    """Return help as Markdown, with special characters escaped, except for code."""
    text = _INDENTED.sub(lambda code: f"\n```sh\n{dedent(code[0]).rstrip()}\n```", text)
    pieces = re.split(r"(```sh\n.*?```|`[^`\n]*`)", text, flags=re.DOTALL)
    return "".join(piece if piece.startswith("`") else re.sub(r"([*<_])", r"\\\1", piece) for piece in pieces)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def main() -> int:
    """Write the page, or report that it is out of date."""
    parser = argparse.ArgumentParser(prog="python -m tools.cli_reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if it is out of date")
    text = page()
    if not parser.parse_args().check:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        print("docs/reference/cli.md is out of date: run `python -m tools.cli_reference`")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
