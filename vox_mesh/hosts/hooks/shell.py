"""Command lines: which commits they make, and in which folder. They are read, never run.

What can't be read for sure counts as a commit if it may be one: a check too many denies nothing that is free.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

_SEPARATORS: Final = frozenset(";&|()\n")
_REDIRECTIONS: Final = frozenset("<>&|")
_PUNCTUATION: Final = "();<>|&\n"
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_MAYBE: Final = re.compile(r"\bgit\b[^\n]*\bcommit\b")
_QUOTES: Final = re.compile(r"[\\'\"]")
_OPAQUE: Final = re.compile(r"[`$]|\b(?:alias|eval|find|parallel|source|xargs)\b")
_WRAPPERS: Final = frozenset(
    {
        *("command", "do", "doas", "else", "env", "exec", "if", "nice", "nohup", "sudo", "then", "time"),
        *("timeout", "while", "until", "!", "{", "builtin", "stdbuf", "setsid", "ionice"),
    }
)
_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh", "fish"})
_GLOBAL_WITH_VALUE: Final = frozenset({"-c", "--namespace", "--super-prefix", "--config-env", "--exec-path"})
_PLACES: Final = {"--git-dir": "GIT_DIR", "--work-tree": "GIT_WORK_TREE"}
_GIT_VARIABLES: Final = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"})
_SHORT_WITH_VALUE: Final = frozenset("mFCctSu")
_LONG_WITH_VALUE: Final = frozenset(
    {
        *("--message", "--file", "--author", "--date", "--template", "--reuse-message", "--reedit-message"),
        *("--fixup", "--squash", "--trailer", "--cleanup", "--pathspec-from-file"),
    }
)
_MAX_DEPTH: Final = 4
_MAX_COMMITS: Final = 8


class Commit(NamedTuple):
    """A commit that a command line makes."""

    folder: Path
    is_all: bool = False
    """Whether it takes all changed files, staged or not."""

    pathspecs: tuple[str, ...] = ()
    """Of which files it takes the changes, staged or not."""

    variables: Mapping[str, str] = {}
    """The variables that say where its repository is."""


@dataclass
class _ShellState:
    """Where a command line is at."""

    folder: Path
    commits: list[Commit] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)


def commits_in(command: str, folder: Path) -> list[Commit]:
    """Return the commits that a command line makes in a folder; there may be fewer in fact."""
    if _MAYBE.search(_QUOTES.sub("", command.replace("\\\n", " "))) is None:
        return []
    place = _ShellState(folder)
    try:
        _read(command, place, _MAX_DEPTH)
    except ValueError:  # a quote that does not end
        return [Commit(folder, is_all=True)]
    if not place.commits and _OPAQUE.search(command):
        return [Commit(folder, is_all=True)]
    return place.commits[:_MAX_COMMITS]


def folder_of(command: str, folder: Path) -> Path:
    """Return the folder in which the last command of a line runs."""
    place = _ShellState(folder)
    try:
        _read(command.partition("<<")[0], place, _MAX_DEPTH)
    except ValueError:
        return folder
    return place.folder


def _read(command: str, place: _ShellState, depth: int) -> None:
    for words in _simple_commands(command):
        _follow(words, place, depth)


def _simple_commands(command: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars=_PUNCTUATION)
    lexer.whitespace, lexer.commenters, lexer.whitespace_split = " \t\r", "", True
    words: list[str] = []
    is_redirected = False
    for token in lexer:
        if token and _SEPARATORS.issuperset(token):
            yield words
            words = []
        elif token and _REDIRECTIONS.issuperset(token):
            words = words[:-1] if words and words[-1].isdecimal() else words
            is_redirected = True
            continue
        elif not is_redirected:
            words.append(token)
        is_redirected = False
    yield words


def _follow(words: list[str], place: _ShellState, depth: int) -> None:
    """Follow one simple command: into another folder, another command line, or a commit."""
    variables = dict(place.variables)
    while words and (found := _ASSIGNMENT.fullmatch(words[0])) is not None:
        variables[found[1]] = found[2]
        words = words[1:]
    if not words:
        place.variables = variables  # without a command they last
        return
    if words[0] == "export":
        place.variables |= {found[1]: found[2] for each in words if (found := _ASSIGNMENT.fullmatch(each))}
    elif words[0] in ("cd", "pushd", "chdir"):
        targets = [each for each in words[1:] if not each.startswith("-")]
        place.folder = (
            place.folder / targets[0].replace("~", str(Path.home()), 1) if targets else place.folder
        )
    else:
        _find_commit(words, variables, place, depth)


def _find_commit(words: list[str], variables: dict[str, str], place: _ShellState, depth: int) -> None:
    at = _command_at(words, variables)
    name = PurePosixPath(words[at]).name if at < len(words) else ""
    if name == "git":
        commit = _commit_of(words[at + 1 :], place.folder, variables)
        if commit is not None:
            place.commits.append(commit)
    elif name == "eval" and depth:
        _read(" ".join(words[at + 1 :]), place, depth - 1)
    elif name in _SHELLS and depth:
        script = next(
            (i for i, each in enumerate(words[at + 1 :], at + 1) if _takes_script(each)), len(words)
        )
        inner = _ShellState(place.folder, place.commits, variables)
        _read(" ".join(words[script + 1 : script + 2]), inner, depth - 1)


def _command_at(words: list[str], variables: dict[str, str]) -> int:
    """Return where the command is, after words that run another one, such as `sudo`."""
    if words[0] not in _WRAPPERS:
        return 0
    for at, word in enumerate(words):
        found = _ASSIGNMENT.fullmatch(word)
        if found is not None:
            variables[found[1]] = found[2]
        elif PurePosixPath(word).name in {"git", "eval", *_SHELLS}:
            return at
    return 0


def _takes_script(word: str) -> bool:
    return word.startswith("-") and not word.startswith("--") and word.endswith("c")


def _commit_of(words: Sequence[str], folder: Path, variables: Mapping[str, str]) -> Commit | None:
    """Return the commit that git makes with these arguments, or `None`."""
    places = {name: value for name, value in variables.items() if name in _GIT_VARIABLES}
    at = 0
    while at < len(words) and words[at].startswith("-"):
        name, has_value, value = words[at].partition("=")
        if name == "-C":
            folder = folder / (words[at + 1] if at + 1 < len(words) else "")
            at += 1
        elif name in _PLACES:
            places[_PLACES[name]] = value if has_value else "".join(words[at + 1 : at + 2])
            at += 0 if has_value else 1
        elif name in _GLOBAL_WITH_VALUE and not has_value:
            at += 1
        at += 1
    if at >= len(words) or words[at] != "commit":
        return None
    is_all, pathspecs = _taken_by(words[at + 1 :])
    return Commit(folder, is_all, pathspecs, places)


def _taken_by(arguments: Sequence[str]) -> tuple[bool, tuple[str, ...]]:
    """Return whether a commit takes all changed files, and the files that it names."""
    named: list[str] = []
    is_all, at = False, 0
    while at < len(arguments):
        word = arguments[at]
        if word == "--":
            named += arguments[at + 1 :]
            break
        if word.startswith("--"):
            is_all = is_all or word == "--all"
            at += word in _LONG_WITH_VALUE
        elif word.startswith("-") and len(word) > 1:
            flags, takes_next = _flags_of(word[1:])
            is_all = is_all or "a" in flags
            at += takes_next
        else:
            named.append(word)
        at += 1
    return is_all, tuple(named)


def _flags_of(word: str) -> tuple[str, bool]:
    """Return the flags in a word such as `am`, and whether the next word is the value of the last one."""
    for at, flag in enumerate(word):
        if flag in _SHORT_WITH_VALUE:
            return word[:at], at == len(word) - 1 and flag not in "Su"
    return word, False
