"""Code arguments: which words of a command an interpreter runs as code, such as the one after `sh -c`.

When in doubt a word counts as code: a reference in it is refused, and can be passed in the environment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

_VERSION: Final = re.compile(r"[-.0-9]+$")


class _Interpreter(NamedTuple):
    """How an interpreter is given code."""

    letters: str = ""
    """The short options that take code, alone or among others: `-c`, `-cx`, `-ec`."""
    names: tuple[str, ...] = ()
    """The other options and words that do, in lower case. An option may be written in part: `-Comm`."""
    with_value: str = ""
    """The short options that take another value, which may come before the code: `-co pipefail`."""
    is_plain: bool = False
    """Whether the first plain word is code."""
    takes_all: bool = False
    """Whether all words after the option are code."""


_SHELL: Final = _Interpreter("c", ("--command", "--init-command"), with_value="oO")
_RUNNER: Final = _Interpreter("c", ("--command", "--session-command"))
_PYTHON: Final = _Interpreter("c", with_value="WX")
_EVALUATOR: Final = _Interpreter("e", ("--eval", "-eval", "--rpc-eval"))
_JAVASCRIPT: Final = _Interpreter("ep", ("--eval", "--print", "eval"))
_POWERSHELL: Final = _Interpreter("", ("-command", "-cwa", "-encodedcommand", "-ec"), takes_all=True)
_AWK: Final = _Interpreter("e", ("--source",), with_value="Fv", is_plain=True)
_SED: Final = _Interpreter("e", ("--expression",), with_value="l", is_plain=True)
_MYSQL: Final = _Interpreter("e", ("--execute", "--init-command"))

_INTERPRETERS: Final = {
    **dict.fromkeys(("sh", "ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "tcsh", "zsh"), _SHELL),
    **dict.fromkeys(("flock", "runuser", "script", "su"), _RUNNER),
    **dict.fromkeys(("python", "pypy", "ipython", "expect"), _PYTHON),
    **dict.fromkeys(("ruby", "lua", "luajit", "osascript", "r", "rscript", "elixir", "erl"), _EVALUATOR),
    **dict.fromkeys(("perl", "julia"), _Interpreter("eE", ("--eval", "--print"))),
    **dict.fromkeys(("node", "nodejs", "deno", "bun"), _JAVASCRIPT),
    "php": _Interpreter("rBRE", ("--run", "--process-begin", "--process-code", "--process-end")),
    **dict.fromkeys(("pwsh", "powershell"), _POWERSHELL),
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), _AWK),
    **dict.fromkeys(("sed", "gsed"), _SED),
    **dict.fromkeys(("mysql", "mariadb"), _MYSQL),
    "psql": _Interpreter("c", ("--command",), with_value="dhpUvf"),
    "env": _Interpreter("S", ("--split-string",), with_value="uC"),
}


def code_places(words: Sequence[str]) -> set[int]:
    """Return the places of the words that are code, and of the options of interpreters, which may hold it."""
    places: set[int] = set()
    reader: _WordReader | None = None
    for place, word in enumerate(words):
        if reader is not None and reader.is_code(word):
            places.add(place)
        elif (interpreter := _interpreter(word)) is not None and (place == 0 or not interpreter.is_plain):
            reader = _WordReader(interpreter)
    return places


def _interpreter(word: str) -> _Interpreter | None:
    return _INTERPRETERS.get(_VERSION.sub("", word.rpartition("/")[2]).lower())


class _WordReader:
    """Reads the words after the name of an interpreter."""

    def __init__(self, interpreter: _Interpreter) -> None:
        self._interpreter = interpreter
        self._awaits_code = interpreter.is_plain
        self._awaits_value = False

    def is_code(self, word: str) -> bool:
        """Return whether the next word is code, or an option, which may hold it."""
        if word[:1] in ("-", "+"):
            self._awaits_code |= self._takes_code(word)
            self._awaits_value = self._takes_value(word)
            return True
        if self._awaits_value:
            self._awaits_value = False
            return False
        is_code = self._awaits_code
        self._awaits_code = word in self._interpreter.names or (is_code and self._interpreter.takes_all)
        return is_code

    def _takes_code(self, option: str) -> bool:
        is_short = option[1:2] != "-"
        if is_short and not set(self._interpreter.letters).isdisjoint(option[1:]):
            return True
        name = option.partition("=")[0].lower()
        return name.strip("-") != "" and any(each.startswith(name) for each in self._interpreter.names)

    def _takes_value(self, option: str) -> bool:
        """Return whether the value of a short option is the next word: no letters of it follow here."""
        places = [place for place, letter in enumerate(option) if letter in self._interpreter.with_value]
        return option[1:2] != "-" and places[:1] == [len(option) - 1]
