"""The full-screen view: panels fed by `Feed`, and keys for common actions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, ClassVar, Final

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.screen import ModalScreen
from textual.widgets import Input

from vox_mesh.cli.top.actions import KEYS, ROW_ACTIONS, Asks, RowAction, run_action
from vox_mesh.cli.top.details import asked, details, sides
from vox_mesh.cli.top.dialogs import Ask, DialogChoice, DialogPage, key_words
from vox_mesh.cli.top.feed import Feed
from vox_mesh.cli.top.headline import (
    Rate,
    Words,
    approval_words,
    database_words,
    fault_words,
    replica_words,
    rhythm_words,
)
from vox_mesh.cli.top.panels import APPROVALS, PANELS, PanelLine, text_of
from vox_mesh.cli.top.widgets import TableWidget, TextLine, heights
from vox_mesh.errors import MeshError
from vox_mesh.settings import Settings
from vox_mesh.views.overview import Overview

_WIDE: Final = (110, 34)
"""The size from which panels are in two columns."""

_TALL: Final = 28
"""The height from which there is a line for the rhythm."""

_DECIDE: Final = f"panel {PANELS.index(APPROVALS) + 1}"
_THEMES: Final = ("ansi-dark", "textual-ansi")
_BARS: Final = 30
_CLOCK_S: Final = 1.0
_SIDES: Final = {
    "l": ("left", "left, the rejected write"),
    "r": ("right", "right, the current row"),
    "m": ("merge", "merge"),
}
_ON_ROWS: Final = ("leave", "explain", "details", "filter", "show_all", "act", "panel")
_YES: Final = {"y": ("yes", "yes"), "n": ("", "no")}
_HELP: Final = """\
tab, shift+tab    next or previous panel
1 to 9            panel by number
up, down, j, k    previous or next row; also page up and down, home and end
enter             details of the row
/                 show only rows that contain a text; Esc shows all again

a                 abort the job; approve what the agent asks for
d                 deny what the agent asks for; asks for a reason
r                 retry the ended job, or send the dead letter again
b                 break the lock; asks for a reason for the log
s                 settle the conflict: left, right or merge

?                 this page
q, ctrl+c         quit

Each action asks for confirmation, and does the same as a command:
`vox-mesh job abort`, `job retry`, `lock break`, `messages retry`,
`conflicts resolve`, `approvals approve`, `approvals deny`.""".splitlines()


class TopApp(App[None]):
    """Draws the overviews of a feed. It has no state worth keeping."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: ansi_default; color: ansi_default; layout: vertical; }
    #panels { layout: grid; height: 1fr; grid-gutter: 0 1; }
    #rhythm { display: none; }
    #filter { border: none; height: 1; padding: 0 1; display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c,ctrl+q", "quit", show=False, priority=True),
        Binding("q", "leave", show=False),
        Binding("question_mark", "explain", show=False),
        Binding("enter", "details", show=False),
        Binding("slash", "filter", show=False),
        Binding("escape", "show_all", show=False),
        *(Binding(key, f"act('{key}')", show=False) for key in sorted(KEYS)),
        *(Binding(str(n), f"panel({n})", show=False) for n in range(1, len(PANELS) + 1)),
    ]

    def __init__(self, settings: Settings, feed: Feed) -> None:
        super().__init__(ansi_color=True)  # set here: else NO_COLOR would turn coloured text black
        self.theme = next(name for name in _THEMES if name in self.available_themes)
        self._feed = feed
        self._mesh_name = "/".join(filter(None, (settings.scope_id, settings.repository_id)))
        self._rate = Rate()
        self._seen: Overview | None = None
        self._fault: MeshError | None = None
        self._away_since = 0.0
        self._message: Words = []
        self._filter = ""
        self._filtered_from: TableWidget | None = None
        self._arranged = (0, "")

    # --- failure ---------------------------------------------------------------------------------

    @property
    def bug(self) -> Exception | None:
        """The exception that ended the app, if it was a bug."""
        return self._exception

    def _fatal_error(self) -> None:
        """End because of a bug. The caller reports it: Textual would print all values, secrets included."""
        self._close_messages_no_wait()

    # --- updates from the feed -------------------------------------------------------------------

    def show_overview(self, overview: Overview) -> None:
        """Show a new overview."""
        if self._fault is not None:
            self.show_message("database is back", "green")
        self._fault, self._seen = None, overview
        self._rate.add(overview.now_ms, overview.last_op_id)
        self.call_later(self.draw)

    def show_fault(self, fault: MeshError) -> None:
        """Show that the overview can't be read, and why."""
        if self._fault is None:
            self._away_since = asyncio.get_running_loop().time()
        self._fault = fault
        self.call_later(self.draw)

    def show_message(self, text: str, style: str = "") -> None:
        """Show a message on the message line."""
        self._message = [(f" {text_of(text)}", style)]
        self.call_later(self.draw)

    # --- drawing ---------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """Yield the header lines, the panels, the message line and the keys."""
        yield TextLine(id="database")
        yield TextLine(id="rate")
        yield TextLine(id="rhythm")
        with Container(id="panels"):
            for panel in PANELS:
                yield TableWidget(panel)
        yield Input(placeholder="show only rows that contain", id="filter")
        yield TextLine(id="message")
        yield TextLine(id="keys")

    def on_mount(self) -> None:
        """Focus the jobs, and redraw every second."""
        self._table("jobs").focus()
        self.set_interval(_CLOCK_S, self.draw)
        self.draw()

    def on_resize(self) -> None:
        """Arrange the panels again."""
        self.call_after_refresh(self._arrange)

    def on_table_focused(self) -> None:
        """Give the focused panel room, and show its keys."""
        self._arrange()
        self._draw_lines()

    def draw(self) -> None:
        """Draw the state; only changes are sent to the terminal."""
        if not self.is_running or not self.screen_stack or not self._base.query("#keys"):
            return  # not yet mounted, or already closed
        if self._seen is not None:
            try:
                self._draw_tables(self._seen)
            except Exception as error:  # rows of the database are untrusted
                self._message = [(f" {_bug(error)}", "bold red")]
        self._draw_lines()

    def _draw_tables(self, seen: Overview) -> None:
        for table in self._tables:
            lines = [line for line in table.panel.lines(seen) if self._is_wanted(line)]
            table.show(lines, table.panel.summary(seen))
        self._arrange()

    @property
    def _base(self) -> Any:
        return self.screen_stack[0]

    @property
    def _tables(self) -> list[TableWidget]:
        return list(self._base.query(TableWidget))

    def _table(self, name: str) -> TableWidget:
        table: TableWidget = self._base.query_one(f"#{name}", TableWidget)
        return table

    @property
    def _focused(self) -> TableWidget | None:
        focused = self._base.focused
        return focused if isinstance(focused, TableWidget) else None

    def _is_wanted(self, line: PanelLine) -> bool:
        return any(self._filter in text.casefold() for text, _ in line.cells)

    def _arrange(self) -> None:
        """Lay out the panels: in two columns if there is room, else by the lines each needs."""
        tables, grid = self._tables, self._base.query_one("#panels")
        rhythm = self._base.query_one("#rhythm")
        rhythm.display = self.size.height >= _TALL
        more = (rhythm, self._base.query_one("#filter"))
        room = self.size.height - 4 - sum(bool(line.display) for line in more)
        is_wide = self.size.width >= _WIDE[0] and self.size.height >= _WIDE[1]
        wanted = [table.wanted for table in tables]
        focused = self._focused
        chosen = tables.index(focused) if focused is not None else None
        if is_wide:
            wanted = [max(wanted[at : at + 2]) for at in range(0, len(wanted), 2)]
            chosen = None
        columns = 2 if is_wide else 1
        given = " ".join(map(str, heights(wanted, room, chosen)))
        if (columns, given) != self._arranged:
            self._arranged = columns, given
            grid.styles.grid_size_columns = columns
            grid.styles.grid_size_rows = len(wanted)
            grid.styles.grid_rows = given

    def _draw_lines(self) -> None:
        lines = {line.id: line for line in self._base.query(TextLine)}
        lines["database"].show([(" ", ""), *self._database_words()])
        lines["rate"].show([(" ", ""), *self._rate_words()])
        lines["rhythm"].show([(" ", ""), *(rhythm_words(self._seen.rhythm) if self._seen else [])])
        lines["message"].show(self._message)
        lines["keys"].show(self._key_words())

    def _database_words(self) -> Words:
        if self._fault is not None:
            seconds = asyncio.get_running_loop().time() - self._away_since
            mesh = self._feed.mesh
            return fault_words(self._fault, seconds, "off" if mesh is None else mesh.store.circuit)
        if self._seen is None:
            return [("opening the database", "")]
        return database_words(self._seen.database)

    def _rate_words(self) -> Words:
        words: Words = [(text_of(self._mesh_name), "bold"), ("  ", "")]
        if self._seen is not None:
            is_stale = "bright_black" if self._fault is not None else ""
            words += [(f"{self._rate.per_second:.1f} ops/s ", is_stale), (self._rate.bars(_BARS), "cyan")]
            words += [("  ", ""), *replica_words(self._seen)]
            if waiting := approval_words(self._seen, _DECIDE):
                words += [("  ", ""), *waiting]
        if self._filter:
            words += [("  only ", ""), (self._filter, "reverse")]
        return [*words, (f"  {datetime.now():%H:%M:%S}", "bright_black")]  # noqa: DTZ005 -- a wall clock

    def _key_words(self) -> Words:
        focused = self._focused
        actions = ROW_ACTIONS.get(focused.panel.name, ()) if focused is not None else ()
        keys = [(each.key, each.word) for each in actions]
        usual = [("enter", "details"), ("/", "filter"), ("tab", "panel"), ("?", "help"), ("q", "quit")]
        return [(" ", ""), *key_words([*keys, *usual])]

    # --- keys ------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the keys of rows while a dialog is open."""
        is_open = len(self.screen_stack) > 1
        return not (is_open and action in _ON_ROWS) and super().check_action(action, parameters)

    def action_leave(self) -> None:
        """Quit."""
        self.exit()

    def action_panel(self, place: int) -> None:
        """Focus a panel."""
        self._tables[place - 1].focus()

    def action_explain(self) -> None:
        """Show the help."""
        self.push_screen(DialogPage("vox-mesh top", ["", *_HELP]))

    def action_filter(self) -> None:
        """Open the filter line."""
        self._filtered_from = self._focused
        line = self._base.query_one("#filter", Input)
        line.display = True
        line.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter the rows as the user types."""
        if event.input.id == "filter":
            self._filter = event.value.strip().casefold()
            self.draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close the filter line and keep the filter."""
        if event.input.id == "filter":
            self._close_filter()

    def action_show_all(self) -> None:
        """Show all rows again."""
        self._base.query_one("#filter", Input).value = ""
        self._filter = ""
        self._close_filter()

    def _close_filter(self) -> None:
        line = self._base.query_one("#filter", Input)
        if line.display:
            line.display = False
            (self._filtered_from or self._tables[0]).focus()
        self.draw()

    def action_details(self) -> None:
        """Show the details of the selected row."""
        line = self._selected()
        if line is not None:
            self._in_background(self._show_details(line))

    def _selected(self) -> PanelLine | None:
        return None if self._focused is None else self._focused.selected

    async def _show_details(self, line: PanelLine) -> None:
        lines = await details(self._mesh, line.item)
        self.push_screen(DialogPage(" ".join(text for text, _ in line.cells[:2]), lines))

    def action_act(self, key: str) -> None:
        """Run the action of a key on the selected row, once confirmed."""
        focused, line = self._focused, self._selected()
        if focused is None:
            return
        action = next((each for each in ROW_ACTIONS.get(focused.panel.name, ()) if each.key == key), None)
        if action is None:
            places = [p.title.lower() for p in PANELS for d in ROW_ACTIONS.get(p.name, ()) if d.key == key]
            self.show_message(f"{key} applies to {' and '.join(places)}: press tab to go there", "yellow")
        elif line is None:
            self.show_message("no row selected", "yellow")
        elif (refusal := action.refusal(line.item)) is not None:
            self.show_message(refusal, "yellow")
        else:
            self._in_background(self._ask(action, line.item))

    async def _ask(self, action: RowAction, item: Any) -> None:
        question = action.question(item)
        dialog: ModalScreen[str | None]
        match action.asks:
            case Asks.REASON:
                dialog = Ask(question, "reason (kept in the log)")
            case Asks.SIDE:
                dialog = DialogChoice(question, _SIDES, await sides(self._mesh, item.conflict_id))
            case Asks.DECISION:
                dialog = DialogChoice(question, _YES, await asked(self._mesh, item.approval_id))
            case Asks.CONFIRMATION:
                dialog = DialogChoice(question, _YES)

        def answered(answer: str | None) -> None:
            if answer:
                self._in_background(self._do(action, item, answer))

        self.push_screen(dialog, answered)

    async def _do(self, action: RowAction, item: Any, answer: str) -> None:
        self.show_message(await run_action(action, self._mesh, item, answer), "green")

    @property
    def _mesh(self) -> Any:
        mesh = self._feed.mesh
        if mesh is None:
            raise MeshError("database is away", hint="retry when it is back")
        return mesh

    def _in_background(self, work: Awaitable[None]) -> None:
        """Run it as a worker; an error is shown on the message line."""

        async def guarded() -> None:
            try:
                await work
            except MeshError as error:
                self.show_message(error.line, "red")
            except Exception as error:
                self.show_message(_bug(error), "bold red")

        self.run_worker(guarded(), exit_on_error=False)


def _bug(error: Exception) -> str:
    return text_of(f"internal error: {type(error).__name__}: {error}")


class MessageLineHandler(logging.Handler):
    """Logs to the message line: other output on the terminal would be drawn over."""

    def __init__(self, show: Callable[[str, str], None]) -> None:
        super().__init__(logging.WARNING)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record."""
        self._show(record.getMessage(), "yellow" if record.levelno < logging.ERROR else "red")
