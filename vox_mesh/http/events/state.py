"""The state of the mesh as events report it: its parts, and what counts as a change of each."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import orjson

from vox_mesh.http.events.wire import Event, json_of
from vox_mesh.model.nodes.agent_state import AgentState
from vox_mesh.views.agents.agents import AgentView
from vox_mesh.views.live.attention import Attention
from vox_mesh.views.live.progress import ProgressLine
from vox_mesh.views.overview import MAX_AGENTS, MAX_ITEMS, Overview, OverviewParts
from vox_mesh.views.rhythm import TaskStatusView

AGENTS: Final = "agents"
AGENT_SEEN: Final = "agent_seen"
AGENT_GONE: Final = "agent_gone"
ATTENTION: Final = "attention"
PROGRESS: Final = "progress"
STATUS: Final = "status"
STATUS_GONE: Final = "status_gone"

_MARKS: Final[dict[str, Callable[[Overview], Any]]] = {
    "nodes": lambda overview: [
        (node.node_id, node.incarnation, node.state, node.role, node.load, node.activity, node.faults)
        for node in overview.nodes
    ],
    AGENTS: lambda overview: [
        (
            *(agent.agent_id, agent.state, agent.node_id, agent.task_id, agent.task_state, agent.unread),
            *(agent.lock_count, agent.waits_for_count, agent.job_count),
        )
        for agent in overview.agents
    ],
    "locks": lambda overview: (
        [(lock.lock_key, lock.fence_token, len(lock.waiters)) for lock in overview.locks],
        [(waiter.lock_key, waiter.agent_id) for waiter in overview.waiters],
    ),
    "messages": lambda overview: (overview.mail, [each.message_uuid for each in overview.messages]),
    "conflicts": lambda overview: [each.conflict_id for each in overview.conflicts],
    "approvals": lambda overview: [each.approval_id for each in overview.approvals],
    "report": lambda overview: (report := overview.rhythm.report) and (report.window_id, report.revision),
}
"""The values of a part that must differ for it to be sent again: passing time is no change."""

_READ: Final = {
    "nodes": OverviewParts.NODES,
    AGENTS: OverviewParts.AGENTS,
    "locks": OverviewParts.LOCKS,
    "messages": OverviewParts.MESSAGES,
    "conflicts": OverviewParts.CONFLICTS,
    "approvals": OverviewParts.APPROVALS,
    "report": OverviewParts.RHYTHM,
    STATUS: OverviewParts.STATUS,
}

WHOLE_TOPICS: Final = (*_MARKS, ATTENTION)
"""The parts that are sent as a whole when they change."""

STATE_TOPICS: Final = frozenset({*WHOLE_TOPICS, STATUS, PROGRESS})
"""All parts that a snapshot may have."""


def overview_parts(topics: Collection[str]) -> OverviewParts:
    """Return the parts of an overview that these topics need."""
    parts = OverviewParts(0)
    for topic in topics:
        parts |= _READ.get(topic, OverviewParts(0))
    return parts


@dataclass(eq=False, slots=True)
class Snapshot:
    """The state at one moment, as far as `topics` need it. Marks and JSON are made once for all listeners."""

    topics: frozenset[str]
    overview: Overview | None = None
    attention: Attention | None = None
    progress: tuple[ProgressLine, ...] = ()
    _marks: dict[str, Any] = field(default_factory=dict)
    _encoded: dict[tuple[str, bool], orjson.Fragment] = field(default_factory=dict)

    def mark(self, topic: str) -> Any:
        """Return what must differ for a topic to be sent again."""
        if topic not in self._marks:
            self._marks[topic] = self._new_mark(topic)
        return self._marks[topic]

    def _new_mark(self, topic: str) -> Any:
        if topic == ATTENTION:
            return self.attention and self.attention.mark
        return self.overview and _MARKS[topic](self.overview)

    def json(self, topic: str, *, is_redacted: bool) -> orjson.Fragment:
        """Return a topic as JSON; redacted, as a read-only credential sees it."""
        key = topic, is_redacted
        if key not in self._encoded:
            self._encoded[key] = json_of(self._part(topic), is_redacted=is_redacted)
        return self._encoded[key]

    def _part(self, topic: str) -> Any:
        if topic == ATTENTION:
            return self.attention
        if topic == PROGRESS:
            return self.progress
        assert self.overview is not None, topic
        if topic == "messages":
            return {**asdict(self.overview.mail), "messages": self.overview.messages}
        return self.overview.rhythm.report if topic == "report" else getattr(self.overview, topic)


class StateChanges:
    """Tells one listener what has changed from snapshot to snapshot."""

    def __init__(self, topics: Collection[str], *, is_redacted: bool) -> None:
        self._topics = topics
        self._is_redacted = is_redacted
        self._sent: dict[str, Any] | None = None
        self._agents = AgentChanges()
        self._statuses = StatusChanges()
        self._progress = ProgressChanges()

    def state(self, snapshot: Snapshot) -> dict[str, Any]:
        """Return all selected parts, as JSON by topic."""
        return {
            topic: snapshot.json(topic, is_redacted=self._is_redacted)
            for topic in (*WHOLE_TOPICS, STATUS, PROGRESS)
            if topic in self._topics
        }

    def update(self, snapshot: Snapshot) -> list[Event]:
        """Return the events of what has changed since the last snapshot; of the first one, none."""
        before = self._sent
        self._sent = {topic: snapshot.mark(topic) for topic in WHOLE_TOPICS if topic in self._topics}
        found: list[Event] = []
        if snapshot.overview is not None and AGENTS in self._topics:
            found += self._agents.update(snapshot.overview)
        if snapshot.overview is not None and STATUS in self._topics:
            found += self._statuses.update(snapshot.overview)
        if PROGRESS in self._topics:
            found += self._progress.update(snapshot.progress)
        if before is None:
            return []
        whole: list[Event] = [
            (topic, snapshot.json(topic, is_redacted=self._is_redacted), None)
            for topic, mark in self._sent.items()
            if mark != before[topic]
        ]
        return whole + found


class ProgressChanges:
    """Tell which running jobs have reported since the snapshot before."""

    def __init__(self) -> None:
        self._known: dict[str, ProgressLine] = {}

    def update(self, progress: Collection[ProgressLine]) -> list[Event]:
        """Return an event for each job that has reported. A job that ends has an entry in the log."""
        before = self._known
        self._known = {each.job_id: each for each in progress}
        return [(PROGRESS, each, None) for each in progress if before.get(each.job_id) != each]


class AgentChanges:
    """Tell which agents came and went between overviews."""

    def __init__(self) -> None:
        self._present: dict[str, AgentView] = {}

    def update(self, overview: Overview) -> list[Event]:
        """Return an event for each agent that is seen now and was not before, or is gone and was not before.

        An agent beyond the maximum of an overview is not known to be gone.
        """
        before = self._present
        self._present = {each.agent_id: each for each in overview.agents if each.state != AgentState.GONE}
        is_cut = len(overview.agents) >= MAX_AGENTS
        gone = {each.agent_id: each for each in overview.agents if each.state == AgentState.GONE}
        events: list[Event] = [
            (AGENT_SEEN, view, None) for name, view in self._present.items() if name not in before
        ]
        for name, view in before.items():
            if name in gone or (name not in self._present and not is_cut):
                events.append((AGENT_GONE, gone.get(name, view), None))
        return events


class StatusChanges:
    """Tell which tasks have another status than in the overview before."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], TaskStatusView] = {}

    def update(self, overview: Overview) -> list[Event]:
        """Return an event for each status that changed, and for each task that is not claimed any more.

        A claim that is repeated in the next beat is no change. A task beyond the maximum of an overview is
        not known to be gone.
        """
        before = self._known
        self._known = {(each.agent_id, each.task_id): each for each in overview.status}
        events: list[Event] = [
            (STATUS, view, None)
            for task, view in self._known.items()
            if task not in before or _claimed(view) != _claimed(before[task])
        ]
        if len(overview.status) < MAX_ITEMS:
            events += [(STATUS_GONE, view, None) for task, view in before.items() if task not in self._known]
        return events


def _claimed(view: TaskStatusView) -> tuple[Any, ...]:
    """Return what a status says, without its beat."""
    waits = (view.wait_for, view.waits_on, view.beats_left)
    return view.state, view.phase, view.score, view.since_ms, *waits, view.progress, view.notes, view.node_id
