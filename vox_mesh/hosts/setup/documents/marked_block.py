"""A block of lines between two marks, at the end of a text file: TOML, Markdown, lists of ignored paths."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vox_mesh.hosts.setup.documents.errors import DocumentRefused


@dataclass(frozen=True)
class MarkedBlock:
    """A block that is ours, by its name; `comment` and `comment_end` make a comment of a line."""

    name: str
    comment: str = "# "
    comment_end: str = ""

    @property
    def begin(self) -> str:
        return f"{self.comment}vox-mesh {self.name}: begin{self.comment_end}"

    @property
    def end(self) -> str:
        return f"{self.comment}vox-mesh {self.name}: end{self.comment_end}"

    def content(self, text: str) -> str | None:
        """Return the lines in the block of a text, or `None` if there is no block."""
        found = self._find(text)
        return None if found is None else found["content"].replace("\r\n", "\n")

    def put(self, text: str | None, content: str) -> str:
        """Return a text with the block; `None` stands for a file that does not exist.

        A block that exists is replaced where it is. `content` consists of whole lines.
        """
        newline = "\r\n" if text is not None and "\r\n" in text else "\n"
        block = f"{self.begin}\n{content}{self.end}\n".replace("\n", newline)
        if text is None:
            return block
        if (found := self._find(text)) is not None:
            return text[: found.start()] + block + text[found.end() :]
        if text.endswith("\r"):
            raise DocumentRefused("line endings of the file are not supported", hint="end its last line")
        # The line break before the block belongs to it: it also ends a last line that has none.
        return f"{text}{newline}{block}"

    def take(self, text: str) -> str | None:
        """Return a text without the block, or `None` if the file was made for it."""
        if (found := self._find(text)) is None:
            return text
        before, behind = text[: found.start()], text[found.end() :]
        if before:
            return before.removesuffix("\n").removesuffix("\r") + behind
        return _without_first_break(behind) or None

    def _find(self, text: str) -> re.Match[str] | None:
        begin, end = re.escape(self.begin), re.escape(self.end)
        block = re.compile(rf"^{begin}\r?\n(?P<content>.*?)^{end}\r?(?:\n|\Z)", re.DOTALL | re.MULTILINE)
        found = block.search(text)
        if found is None and re.search(rf"^{begin}\r?$", text, re.MULTILINE):
            raise DocumentRefused(
                f"line {self.begin!r} must be followed by {self.end!r}", hint="remove the rest of the block"
            )
        return found


def _without_first_break(text: str) -> str:
    """Remove the line break of a block that follows: the file was made for this one, and is now its own."""
    return text.removeprefix("\r\n") if text.startswith("\r\n") else text.removeprefix("\n")
