"""The widgets of the view: lines of text and tables that fit the terminal. No text is ever markup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from vox_mesh.cli.top.headline import Words
from vox_mesh.cli.top.panels import Column, Panel, PanelLine

GAP: Final = 2
_ELLIPSIS: Final = "…"


def cut(text: str, width: int) -> str:
    """Fit the text into exactly this many columns, with an ellipsis if it is cut."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, width - 1) + _ELLIPSIS if width > 1 else set_cell_size(text, width)


def widths(natural: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """Return the width of each column: its natural one, but the widest shrink if there is no room.

    Columns at the end that still have no room get width 0.
    """
    given = list(natural)
    excess = sum(given) + GAP * (len(given) - 1) - width
    while excess > 0:
        wider = [at for at in range(len(given)) if given[at] > least[at]]
        if not wider:
            break
        most = max(wider, key=given.__getitem__)
        given[most] -= 1
        excess -= 1
    for at in range(len(given) - 1, 0, -1):
        if excess <= 0:
            break
        excess -= given[at] + GAP
        given[at] = 0
    return given


def heights(wanted: Sequence[int], available: int, chosen: int | None = None) -> list[int]:
    """Divide the available lines among panels; return the height of each.

    Each gets its title and one row, if it has any; then the chosen one gets what it wants, then the others.
    If that is not enough for the chosen one, the last of the others show their titles only. The rest goes to
    the chosen one, or is shared.
    """
    given = [min(2, want) for want in wanted]
    left = available - sum(given)
    if chosen is not None:
        more = max(0, min(wanted[chosen] - given[chosen], left))
        given[chosen] += more
        left -= more
        for at in reversed(range(len(given))):
            if at != chosen and given[at] > 1 and (left < 0 or given[chosen] < wanted[chosen]):
                given[at] -= 1
                given[chosen] += left >= 0
                left += left < 0
    while left > 0 and (short := [at for at, want in enumerate(wanted) if given[at] < want]):
        for at in short[:left]:
            given[at] += 1
        left -= len(short[:left])
    if chosen is not None:
        given[chosen] += max(0, left)
        return given
    share, rest = divmod(max(0, left), len(given))
    return [each + share + (at < rest) for at, each in enumerate(given)]


_PLAIN: Final = Style.null()
"""The style of empty space: without a style it can't be drawn under `NO_COLOR`."""

_TITLE: Final = 1
_HEADED_FROM: Final = 4
"""The minimum height of an unfocused table that shows its headings."""


class TextLine(Widget):
    """One line of text."""

    DEFAULT_CSS = "TextLine { height: 1; width: 1fr; }"

    def __init__(self, *, id: str) -> None:  # noqa: A002 -- Textual's own word
        super().__init__(id=id)
        self._words: Words = []

    def show(self, words: Words) -> None:
        """Show this text; does nothing if it is already shown."""
        if words != self._words:
            self._words = words
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """Draw the text, cut at the end of the line."""
        width = self.size.width
        left, line = width, Words()
        for text, style in self._words if y == 0 else ():
            line.append((text if cell_len(text) <= left else cut(text, max(0, left)), style))
            left -= cell_len(line[-1][0])
        return _strip(line, width)


class TableWidget(Widget, can_focus=True):
    """A panel: a title with a summary, and rows, one of which is selected."""

    DEFAULT_CSS = "TableWidget { height: 1fr; width: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown,space", "page(1)", show=False),
        Binding("home,g", "move(-1000000)", show=False),
        Binding("end,G", "move(1000000)", show=False),
    ]

    class Focused(Message):
        """Sent when a table gets the focus."""

    def __init__(self, panel: Panel) -> None:
        super().__init__(id=panel.name)
        self.panel = panel
        self._summary = ""
        self._lines: Sequence[PanelLine] = ()
        self._at = 0
        self._first = 0
        self._drawn: list[Words] = []

    # --- content ---------------------------------------------------------------------------------

    def show(self, lines: Sequence[PanelLine], summary: str) -> None:
        """Show these rows; the selected one stays selected."""
        selected = self.selected
        self._lines, self._summary = lines, summary
        if selected is not None:
            keys = [line.key for line in lines]
            self._at = keys.index(selected.key) if selected.key in keys else self._at
        self._draw()

    @property
    def selected(self) -> PanelLine | None:
        """The selected row."""
        return self._lines[self._at] if self._at < len(self._lines) else None

    @property
    def wanted(self) -> int:
        """The number of lines that would show everything."""
        return _TITLE + len(self._lines) + (1 if self._lines else 0)

    # --- moving ----------------------------------------------------------------------------------

    def action_move(self, by: int) -> None:
        """Move the cursor to another row."""
        self._at = max(0, min(self._at + by, len(self._lines) - 1))
        self._draw()

    def action_page(self, by: int) -> None:
        """Move by one page."""
        self.action_move(by * max(1, self._room - 1))

    def on_focus(self) -> None:
        """Draw the table as focused."""
        self.post_message(self.Focused())
        self._draw()

    def on_blur(self) -> None:
        """Draw the table as unfocused."""
        self._draw()

    def on_resize(self) -> None:
        """Draw the table in its new size."""
        self._draw()

    # --- drawing ---------------------------------------------------------------------------------

    @property
    def _has_headings(self) -> bool:
        return bool(self._lines) and (self.size.height >= _HEADED_FROM or self.has_focus)

    @property
    def _room(self) -> int:
        """The number of visible rows."""
        return max(1, self.size.height - _TITLE - self._has_headings)

    def _draw(self) -> None:
        """Redraw changed lines only: the connection to the terminal may be slow."""
        self._at = max(0, min(self._at, len(self._lines) - 1))
        room = self._room
        self._first = max(min(self._first, self._at), self._at - room + 1, 0)
        self._first = max(0, min(self._first, len(self._lines) - room))
        width = self.size.width
        drawn = self._rendered(width)[: self.size.height]
        for y, line in enumerate(drawn):
            if y >= len(self._drawn) or line != self._drawn[y]:
                self.refresh(Region(0, y, width, 1))
        for y in range(len(drawn), len(self._drawn)):
            self.refresh(Region(0, y, width, 1))
        self._drawn = drawn

    def _rendered(self, width: int) -> list[Words]:
        if width < 4:
            return []
        shown = self._lines[self._first : self._first + self._room]
        columns = self.panel.columns
        natural = [
            max([len(column.name), *(cell_len(line.cells[at][0]) for line in self._lines)])
            for at, column in enumerate(columns)
        ]
        fitted = widths(natural, [min(c.least, n) for c, n in zip(columns, natural, strict=True)], width - 2)
        lines = [self._title(width)]
        if self._has_headings:
            heading = [(column.name, "bright_black") for column in columns]
            lines.append(_row(heading, columns, fitted, width))
        for at, line in enumerate(shown, start=self._first):
            is_chosen = self.has_focus and at == self._at
            lines.append(_row(line.cells, columns, fitted, width, "reverse" if is_chosen else ""))
        return lines

    def _title(self, width: int) -> Words:
        hidden = len(self._lines) - self._room
        last = min(self._first + self._room, len(self._lines))
        where = f" {self._first + 1}-{last} of {len(self._lines)} " if hidden > 0 else ""
        title = f" {self.panel.title} "
        room = max(0, width - len(title) - len(where) - 4)
        summary = cut(self._summary, min(cell_len(self._summary), room))
        rule = width - len(title) - cell_len(summary) - len(where) - 4
        style = "bold cyan" if self.has_focus else "bright_black"
        heavy = "━" if self.has_focus else "─"
        return [
            (heavy, style),
            (title, "bold reverse" if self.has_focus else "bold"),
            (f" {summary} ", ""),
            (heavy * max(0, rule), style),
            (where, style),
            (heavy, style),
        ]

    def render_line(self, y: int) -> Strip:
        """Draw a prepared line."""
        width = self.size.width
        if y >= len(self._drawn):
            return Strip.blank(width, _PLAIN)
        return _strip(self._drawn[y], width)


def _strip(line: Words, width: int) -> Strip:
    segments = [Segment(text, Style.parse(style)) for text, style in line if text]
    return Strip(segments).adjust_cell_length(width, _PLAIN)


def _row(
    cells: Sequence[tuple[str, str]],
    columns: Sequence[Column],
    fitted: Sequence[int],
    width: int,
    style: str = "",
) -> Words:
    row: Words = [(" ", style)]
    used = 1
    for (text, own), column, size in zip(cells, columns, fitted, strict=True):
        if size:
            shown = cut(text, size)
            if column.is_number and cell_len(text) <= size:
                shown = " " * (size - cell_len(text)) + text
            row += [(shown, style or own), (" " * GAP, style)]
            used += size + GAP
    if used > width:  # the gap after the last column
        row[-1] = (" " * max(0, GAP - (used - width)), style)
    else:
        row.append((" " * (width - used), style))
    return row
