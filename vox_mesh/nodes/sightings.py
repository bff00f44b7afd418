"""Sightings: which agents act through this process, written in batches and not with every action."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import orjson

from vox_mesh.model.base.recent import Recent
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Script, Statement

WRITE_INTERVAL_S: Final = 5.0
"""An agent is written at most once in this time."""

ATTACHED_INTERVAL_S: Final = 30.0
"""An agent that lives in this process is written again after this time: heartbeats stand for it meanwhile."""

COMMAND_INTERVAL_S: Final = 30.0
"""A command leaves the row of an agent that was seen within this time."""

_SQL: Final = named("agents")
_MAX_AGENTS: Final = 1_024
_MAX_AT_ONCE: Final = 256


class _Sighting(NamedTuple):
    action: str
    seen_at: float


class Sightings:
    """Collect the agents that act through this process."""

    def __init__(
        self, mesh_id: tuple[str, str], node: Callable[[], str], monotonic: Callable[[], float]
    ) -> None:
        self._mesh = mesh_id
        self._node = node
        self._monotonic = monotonic
        self._pending = Recent[str, _Sighting](_MAX_AGENTS)
        self._written = Recent[tuple[str, bool], float](_MAX_AGENTS)
        self._in_flight: list[tuple[str, bool]] = []

    def note(self, agent: str, action: str) -> None:
        """Note that an agent did something. It is written later, or not at all."""
        self._pending[agent] = _Sighting(action, self._monotonic())

    def script(self, attached: Iterable[str] = (), *, min_age_s: float = 0.0) -> Script | None:
        """Return the script that writes what is due; `attached` are the agents that live in this process.

        Rows written within `min_age_s` stay as they are. Call `written` when it was applied.
        """
        now = self._monotonic()
        rows: list[tuple[str, int, str, int]] = []
        self._in_flight = []
        lasting = dict.fromkeys(attached)
        for agent in lasting:
            if self._is_due((agent, True), now, ATTACHED_INTERVAL_S):
                action = self._pending[agent].action if agent in self._pending else "run"
                rows.append((agent, 1, action, 0))
                self._in_flight.append((agent, True))
        for agent, (action, seen_at) in self._pending.items():
            if agent not in lasting and self._is_due((agent, False), now, WRITE_INTERVAL_S):
                rows.append((agent, 0, action, max(0, round((now - seen_at) * 1_000))))
                self._in_flight.append((agent, False))
        del rows[_MAX_AT_ONCE:], self._in_flight[_MAX_AT_ONCE:]
        if not rows:
            return None
        values = (*self._mesh, orjson.dumps(rows).decode(), self._node(), round(min_age_s * 1_000))
        return Script(Statement(_SQL["note"], values), repeatable=True)

    def _is_due(self, key: tuple[str, bool], now: float, interval_s: float) -> bool:
        return now - self._written.get(key, float("-inf")) >= interval_s

    def written(self) -> None:
        """Record that the last script was applied."""
        now = self._monotonic()
        for key in self._in_flight:
            self._written[key] = now
            self._pending.pop(key[0], None)
        self._in_flight = []
