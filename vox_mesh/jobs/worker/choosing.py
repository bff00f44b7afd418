"""Choosing: which of the jobs that are ready this node should claim, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import orjson

from vox_mesh.jobs.queries import Claimable, JobQueries, KindRules, Situation
from vox_mesh.model.jobs.records import EXEC, matches, most_specific
from vox_mesh.model.jobs.rendezvous import GRACE_MS, RANKS, Ranking, patience_ms
from vox_mesh.model.nodes.liveness import NodeState
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.nodes.nodes import Node, Nodes
from vox_mesh.oplog.roles import Roles

_FRESH_S: Final = 0.5  # nodes come and go more slowly than jobs
_SURPRISED_S: Final = 0.05
_MANY_FREE: Final = 0.25
_LONG_MS: Final = 5_000
_LIVE: Final = frozenset({NodeState.ALIVE, NodeState.WARN})


class ClaimChoice(NamedTuple):
    """The jobs to claim now, and when to look again if nothing else happens before."""

    take: list[Claimable]
    again_ms: int | None


class Chooser:
    """Ranks the nodes for each job, and finds out whose turn it is."""

    def __init__(
        self,
        node_id: str,
        roster: JobQueries,
        nodes: Nodes,
        roles: Roles,
        clock: MeshClock,
        monotonic: Callable[[], float],
        grace_ms: int = GRACE_MS,
    ) -> None:
        self._own = node_id
        self._roster = roster
        self._nodes = nodes
        self._roles = roles
        self._clock = clock
        self._monotonic = monotonic
        self._grace_ms = grace_ms
        self._others: list[Node] = []
        self._known = frozenset({node_id})
        self._seen_s = float("-inf")
        self._is_surprised = False
        self._routed: str | None = None
        self._routes: dict[str, str] = {}
        self._now = Situation([], frozenset(), {}, {}, None)
        self._rankings: dict[str, Ranking] = {}

    async def look(self) -> list[str]:
        """See how things stand; the kinds of which there are jobs to be done."""
        self._now = await self._roster.situation()
        if not self._known.issuperset(self._now.places):
            self.surprise()
        if self._is_surprised:
            await self.look_around()
            # Who has jobs still, and is gone, surprises once.
            self._known = self._known.union(self._now.places)
        if self._now.routed != self._routed:
            self._routes, self._routed = await self._roles.routes(), self._now.routed
        self._rankings = {}
        return self._now.kinds

    async def look_around(self) -> None:
        """See who else is there, every now and then."""
        now = self._monotonic()
        if now - self._seen_s >= (_SURPRISED_S if self._is_surprised else _FRESH_S):
            self._is_surprised = False
            self._others = [each for each in await self._nodes.all() if self._is_other(each)]
            self._known = frozenset({self._own, *(each.node_id for each in self._others)})
            self._seen_s = now

    def surprise(self) -> None:
        """Another node has taken what was our turn, or has jobs: there may be one that we have not seen."""
        self._is_surprised = True

    def _is_other(self, node: Node) -> bool:
        return node.node_id != self._own and node.state in _LIVE and node.capacity > 0

    @property
    def count(self) -> int:
        """How many nodes take jobs, as far as we have looked."""
        return len(self._others) + 1

    @property
    def is_draining(self) -> bool:
        """Whether this node is to take no more work."""
        return self._own in self._now.drains

    def rules_of(self, kind: str) -> KindRules:
        """What was decided of a kind."""
        return self._now.rules.get(kind) or KindRules(kind)

    def is_open(self, kind: str) -> bool:
        """Whether jobs of a kind may be claimed by this node at all, as things stand."""
        if self.is_draining or self.rules_of(kind).is_paused:
            return False
        pattern = most_specific(self._routes, kind)
        return pattern is None or self._routes[pattern] == self._own

    def is_plain(self, kind: str) -> bool:
        """Whether nothing was decided that holds back jobs of a kind."""
        rules = self.rules_of(kind)
        return self._now.routed is None and rules.max_running is None and rules.rate is None

    def choose(self, jobs: Sequence[Claimable], capacity: int, places: int, *, is_deep: bool) -> ClaimChoice:
        """Those of the jobs that are ours by now, up to so many. The jobs are of kinds that are open to us.

        Where we are first comes before all others of the same priority. What is another's turn is ours too
        when its time has come; but if there is more to do than we have looked at (`is_deep`), everyone has
        enough of their own, and to take from others would only be to race them: unless we have none, and
        many places, or they have not come for long.
        """
        if not capacity:
            return ClaimChoice([], None)  # the worker was stopped while it looked
        now_ms = self._clock.now_ms
        anyones_ms = now_ms - patience_ms(RANKS, self._grace_ms)
        due: dict[int, tuple[list[Claimable], list[Claimable]]] = {}
        later_ms: list[int] = []
        for job in jobs:
            ranking = self._ranking(job.kind, capacity, is_deep)
            if job.not_before_ms <= anyones_ms:
                is_ours = ranking.is_first(job.job_id, job.seed)
            else:
                place = ranking.place(job.job_id, job.seed)
                due_ms = job.not_before_ms + patience_ms(place, self._grace_ms)
                if due_ms > now_ms:
                    later_ms.append(due_ms)
                    continue
                is_ours = place == 0
            due.setdefault(job.priority, ([], []))[not is_ours].append(job)
        take: list[Claimable] = []
        for _, (ours, others) in sorted(due.items(), reverse=True):
            take += ours
            if not is_deep or (not ours and places >= capacity * _MANY_FREE):
                take += others
            elif not ours:
                take += [job for job in others if now_ms - job.not_before_ms > _LONG_MS]
                later_ms += [job.not_before_ms + _LONG_MS + 1 for job in others]
        return ClaimChoice(take[:places], min(later_ms, default=None))

    def _ranking(self, kind: str, capacity: int, is_deep: bool) -> Ranking:
        """Among those who could take a job of a kind, each by its weight: those with a free place.

        When there is much to do, who has none now will have one soon.
        """
        ranking = self._rankings.get(kind)
        if ranking is None:
            weights = {self._own: capacity}
            if most_specific(self._routes, kind) is None:  # else it is for us alone
                weights |= {
                    node.node_id: node.capacity
                    for node in self._others
                    if node.node_id not in self._now.drains
                    and (is_deep or node.capacity > self._now.places.get(node.node_id, 0))
                    and _is_of(kind, _patterns(node.kinds))
                }
            ranking = self._rankings[kind] = Ranking(self._own, weights)
        return ranking


def _is_of(kind: str, patterns: Sequence[str]) -> bool:
    """Whether a node that works on these works on a kind; commands run only where they are allowed."""
    return kind in patterns if kind == EXEC else any(matches(each, kind) for each in patterns)


@lru_cache(maxsize=1_024)
def _patterns(text: str) -> tuple[str, ...]:
    return tuple(orjson.loads(text))
