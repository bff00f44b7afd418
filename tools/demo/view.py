"""The output of the demo while it runs: redrawn lines, or one line per event without a terminal."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tools.demo.scenario import KINDS, ORCHESTRATORS
from tools.demo.workspace import Event

_FRAMES_A_SECOND: Final = 8
_MILESTONE: Final = 15
_NAME: Final = max(map(len, ORCHESTRATORS))
_STYLES: Final = {"alive": "green", "killed": "bold red", "absent": "dim"}


@dataclass
class Standing:
    """The state of one orchestrator, from its events."""

    state: str = "absent"
    did: int = 0
    jobs: dict[str, str] = field(default_factory=dict)
    locks: dict[str, int] = field(default_factory=dict)

    @property
    def in_hand(self) -> str:
        """Its jobs and locks."""
        locks = (f"lock {key} #{token}" for key, token in self.locks.items())
        return ", ".join([*self.jobs.values(), *locks])


class View:
    """The state of the run, and one line for each event."""

    def __init__(self, console: Console) -> None:
        self.wanted = 0
        self.ended_of: dict[str, int] = {}
        self.sent = self.acked = 0
        self.nodes = {name: Standing() for name in ORCHESTRATORS}
        self.conflicts = {"open": 0, "resolved": 0}
        self._console = console
        self._began = time.monotonic()

    @property
    def ended(self) -> int:
        """The number of ended jobs."""
        return sum(self.ended_of.values())

    @property
    def elapsed_s(self) -> float:
        """The seconds since the start."""
        return time.monotonic() - self._began

    def say(self, text: str, who: str = "") -> None:
        """Print an event."""
        line = Text(f"{self.elapsed_s:5.1f} s  ", style="dim")
        line.append(f"{who:<{_NAME}}  " if who else "", style="bold not dim")
        line.append(text, style="not dim")
        self._console.print(line, soft_wrap=True, highlight=False)

    def looked(self, ended_of: dict[str, int], sent: int, acked: int) -> None:
        """Update the counts of ended jobs by kind, and of messages."""
        before = self.ended
        self.ended_of, self.sent, self.acked = ended_of, sent, acked
        if self.wanted and before // _MILESTONE < self.ended // _MILESTONE:
            self.reached(self.ended - self.ended % _MILESTONE)

    def reached(self, ended: int) -> None:
        """Print the progress."""
        self.say(f"{ended} of {self.wanted} jobs are done")

    def on_event(self, event: Event) -> None:
        """Update the state from an event."""
        match event["event"]:
            case "killed":
                self.nodes[event["name"]].state = "killed"
            case "resolved":
                self.conflicts = {
                    "open": self.conflicts["open"] - 1,
                    "resolved": self.conflicts["resolved"] + 1,
                }
            case "revised":
                self.conflicts["open"] += event["conflict"] is not None
            case _ if event["node"] in self.nodes:
                _follow(self.nodes[event["node"]], event)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class LiveView(View):
    """A view with a few lines below the events that show the current state."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(
            console=console,
            get_renderable=self.frame,
            refresh_per_second=_FRAMES_A_SECOND,
            transient=True,
        )

    def reached(self, ended: int) -> None:
        """Do nothing: the bar shows it."""

    def frame(self) -> RenderableType:
        """Return the current state."""
        return Group("", self._jobs(), self._nodes(), self._rest())

    def _jobs(self) -> RenderableType:
        bar = Table.grid(padding=(0, 2))
        total = max(self.wanted, 1)
        of_kinds = " ".join(f"{kind} {self.ended_of.get(kind, 0)}" for kind in KINDS)
        bar.add_row(
            Text("jobs".ljust(_NAME), style="bold"),
            ProgressBar(total=total, completed=self.ended, width=24, pulse=not self.wanted),
            f"{self.ended}/{self.wanted}",
            Text(of_kinds, style="dim", no_wrap=True, overflow="ellipsis"),
        )
        return bar

    def _nodes(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for name, node in self.nodes.items():
            table.add_row(
                Text(name.ljust(_NAME), style="bold"),
                Text(f"{node.state:<6}", style=_STYLES[node.state]),
                Text(f"{node.did:>2} done", style="" if node.did else "dim"),
                Text(
                    node.in_hand,
                    style=_STYLES["killed"] if node.state == "killed" else "cyan",
                    no_wrap=True,
                    overflow="ellipsis",
                ),
            )
        return table

    def _rest(self) -> RenderableType:
        text = f"messages  {self.acked} of {self.sent} acknowledged     "
        text += f"conflicts  {self.conflicts['open']} open, {self.conflicts['resolved']} resolved     "
        text += f"{self.elapsed_s:.0f} s"
        return Text(text, style="dim", no_wrap=True, overflow="ellipsis")

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def view_of(console: Console) -> View:
    """Return the view for a terminal, or for anything else."""
    return LiveView(console) if console.is_terminal and not console.is_dumb_terminal else View(console)


def _follow(node: Standing, event: Event) -> None:
    match event["event"]:
        case "joined":
            node.state, node.jobs, node.locks = "alive", {}, {}
        case "began" | "stepped":
            so_far = f" {event['done']}/{event['steps']}" if event["steps"] > 1 else ""
            node.jobs[event["job"]] = f"{event['kind']} {event['name']}{so_far}"
        case "did":
            node.jobs.pop(event["job"], None)
            node.did += 1
        case "holds":
            node.locks[event["key"].removeprefix("file:")] = event["token"]
        case "lets_go":
            node.locks.pop(event["key"].removeprefix("file:"), None)
