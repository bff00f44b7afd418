"""Compaction: scripts and styles without what a browser does not need. Names stay as they are written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_CODE: Final = re.compile(
    r"""(?P<space>(?:\s+|//[^\n]*|/\*.*?\*/|,(?=\s*[)\]}])|;(?=\s*\}))+)"""
    r"""|(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"""|(?P<bracket>[`{}])|(?P<slash>/)""",
    re.DOTALL,
)
_CONST: Final = re.compile(r"\bconst$")
_DIGITS: Final = re.compile(r"\b\d+(?:_\d+)+")
_TEMPLATE: Final = re.compile(r"(?P<end>`)|(?P<hole>\$\{)|\\.|(?P<space>\s*\n\s*)", re.DOTALL)
_REGULAR: Final = re.compile(r"/(?:[^/\\\[\n]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/[a-z]*")
_OPERAND: Final = re.compile(r"(?:(?<!\w)(?:return|typeof|case|in|of))\Z|[^\w$)\]}\"'`]\Z|\A\Z")
"""The end of code after which a slash begins a regular expression."""

_LOOKS_BACK: Final = 8
_TIGHT: Final = frozenset("{}()[],;:=><?&|!*%\"'`")
"""Next to these, no space is needed."""

_SIGNS: Final = frozenset("+-")
"""Next to these, no space is needed, unless there are two."""

_OPEN: Final = frozenset("{([,;:=?&|")
_CLOSING: Final = frozenset("})],;:=?&|.")
"""After the first and before the second, a statement can't end: no line break is needed."""


def compact_style(source: str) -> str:
    """Return a style sheet without comments and needless space. Its texts have no space next to signs."""
    text = re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL)
    text = re.sub(r"\s*([{};,>])\s*|(?<=:)\s+", r"\1", text)
    return text.replace(";}", "}").strip() + "\n"


def compact_script(source: str) -> str:
    """Return a script without comments, needless space, and commas and semicolons before a closing bracket.

    `const` becomes `let`: that no constant is assigned was checked before, with the types.
    No loop may have an empty body. Line breaks in templates become plain ones, and go next to tags, where
    markup ignores them: where they count, templates write them as escapes.
    """
    return "".join(_Compaction(source).pieces())


def code_of(source: str) -> str:
    """Return what is code in a script, without texts."""
    compaction = _Compaction(source)
    list(compaction.pieces())
    return "\n".join(compaction.code)


class _Compaction:
    """Goes through a script once. `holes` counts the open braces of each hole of a template."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._holes: list[int] = []
        self._is_template = False
        self._space = ""
        self._last = ""
        self.code: list[str] = []

    def pieces(self) -> Iterator[str]:
        """Yield the compacted script."""
        source = self._source
        while self._at < len(source):
            found = (_TEMPLATE if self._is_template else _CODE).search(source, self._at)
            end = len(source) if found is None else found.start()
            if end > self._at:
                yield from self._emit(self._between(source[self._at : end]))
            if found is None:
                return
            self._at = found.end()
            if self._is_template:
                yield self._of_template(found)
            else:
                yield from self._of_code(found)

    def _between(self, text: str) -> str:
        """Return what stands between two pieces, and keep it if it is code."""
        if self._is_template:
            return text
        self.code.append(text)
        return _CONST.sub("let", _DIGITS.sub(lambda found: found[0].replace("_", ""), text))

    def _of_template(self, found: re.Match[str]) -> str:
        if found["space"]:
            before, after = self._source[found.start() - 1], self._source[found.end()]
            return "" if before == ">" or after in "<`" else "\n"
        if found["hole"]:
            self._holes.append(0)
        self._is_template = not (found["end"] or found["hole"])
        self._last = found[0]
        return found[0]

    def _of_code(self, found: re.Match[str]) -> Iterator[str]:
        piece = found[0]
        if found["space"]:
            self._space = "\n" if "\n" in piece else " "
            return
        if found["slash"] and _OPERAND.search(self._last[-_LOOKS_BACK:]):
            regular = _REGULAR.match(self._source, found.start())
            if regular is not None:
                piece, self._at = regular[0], regular.end()
        yield from self._emit(piece)
        if found["bracket"]:
            self._is_template = piece == "`" or (piece == "}" and self._ends_hole())
            if piece == "{" and self._holes:
                self._holes[-1] += 1

    def _ends_hole(self) -> bool:
        if not self._holes:
            return False
        self._holes[-1] -= 1
        if self._holes[-1] >= 0:
            return False
        self._holes.pop()
        return True

    def _emit(self, piece: str) -> Iterator[str]:
        """Yield a piece, after the space that is needed before it."""
        if self._space and self._last:
            before, after = self._last[-1], piece[0]
            if self._space == "\n":
                is_needed = before not in _OPEN and after not in _CLOSING and not self._last.endswith("=>")
            else:
                is_needed = not ({before, after} & _TIGHT or (before in _SIGNS) != (after in _SIGNS))
            if is_needed:
                yield self._space
        self._space = ""
        self._last = piece
        yield piece
