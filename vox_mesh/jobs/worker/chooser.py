"""Choosing: which ready jobs this node should claim, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import orjson

from vox_mesh.jobs.queries import Claimable, JobQueries, KindRules, Situation, SpendLeft
from vox_mesh.model.jobs.claim_history import ClaimHistory
from vox_mesh.model.jobs.records import Job, covers, most_specific
from vox_mesh.model.jobs.rendezvous import GRACE_MS, Ranking, patience_ms
from vox_mesh.model.nodes.liveness import NodeState
from vox_mesh.model.rhythm.budgets import account_of, agent_of
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.nodes.nodes import Node, Nodes
from vox_mesh.oplog.roles import NO_ROUTES, Roles, Routing

_MEMBERSHIP_S: Final = 0.5  # nodes change more slowly than jobs
_STALE_MEMBERSHIP_S: Final = 0.05
_SITUATION_S: Final = 5.0
"""How old the situation by which a node lets others go first without a survey may become."""

_MAX_GLANCED: Final = 4
_MANY_FREE: Final = 0.25
_OVERDUE_MS: Final = 5_000
_LIVE: Final = frozenset({NodeState.ALIVE, NodeState.WARN})


class ClaimChoice(NamedTuple):
    """The jobs to claim now, and when to look again, in ms."""

    take: list[Claimable]
    retry_at_ms: int | None
    is_others_turn: bool = False
    """Whether other nodes rank before this one for any of them: they may have claimed it just now."""
    own_count: int = 0
    """How many of the claimable jobs this node ranks first for, also beyond its free capacity."""


class Chooser:
    """Ranks the nodes for each job, and decides whose turn it is."""

    def __init__(
        self,
        node_id: str,
        queries: JobQueries,
        nodes: Nodes,
        roles: Roles,
        clock: MeshClock,
        monotonic: Callable[[], float],
        grace_ms: int = GRACE_MS,
    ) -> None:
        self._own = node_id
        self._queries = queries
        self._nodes = nodes
        self._roles = roles
        self._clock = clock
        self._monotonic = monotonic
        self._grace_ms = grace_ms
        self._others: list[Node] = []
        self._known = frozenset({node_id})
        self._seen_s = self._read_s = float("-inf")
        self._is_membership_stale = False
        self._routed: str | None = None
        self.routing: Routing = NO_ROUTES
        """The routes as they were last read."""
        self._now = Situation([], frozenset(), {}, {}, None)
        self._rankings: dict[str, Ranking] = {}

    async def read_situation(self, history: ClaimHistory | None = None) -> list[str]:
        """Read the current situation and return the kinds that have unfinished jobs.

        `history` takes in the claims since the last time.
        """
        self._read_s = self._monotonic()
        self._now = await self._queries.situation(history)
        if not self._known.issuperset(self._now.places):
            self.invalidate_membership()
        if self._is_membership_stale:
            await self.refresh_membership()
            # A node that left with jobs invalidates the membership only once.
            self._known = self._known.union(self._now.places)
        if self._now.routed != self._routed:
            self.routing, self._routed = await self._roles.routing(), self._now.routed
        self._rankings = {}
        return self._now.kinds

    async def glance(self, capacity: int, has_free: Callable[[str], bool]) -> ClaimChoice | None:
        """Return when to look again if no pending job is this node's turn yet; `None` if it must survey them.

        After each commit about a job, all nodes of a mesh look for jobs, and at most one of them claims.
        """
        if self._monotonic() - self._read_s >= _SITUATION_S or self._is_membership_stale:
            return None
        seen = await self._queries.glance(_MAX_GLANCED)
        if seen is None or not self._known.issuperset(seen.places):
            return None
        if seen.places != self._now.places:
            self._now, self._rankings = self._now._replace(places=seen.places), {}
        jobs = [job for job in seen.jobs if has_free(job.kind)]
        if not all(self.is_open(job.kind) for job in jobs):
            return None  # the rules and the routes may have changed
        choice = self.choose(jobs, capacity, 1, is_deep=False)
        return None if choice.take else choice

    @property
    def rekeyed(self) -> str | None:
        """Return the marker of the last key that the owner had accepted when the situation was read."""
        return self._now.rekeyed

    @property
    def bindings(self) -> Sequence[str]:
        """Return what of the rhythm pending jobs waited for when the situation was read."""
        return self._now.bindings

    @property
    def has_tagged(self) -> bool:
        """Return whether pending jobs might have tags when the situation was read."""
        return self._now.has_tagged

    async def refresh_membership(self) -> None:
        """Read the other nodes again if the last reading is too old."""
        now = self._monotonic()
        if now - self._seen_s >= (_STALE_MEMBERSHIP_S if self._is_membership_stale else _MEMBERSHIP_S):
            self._is_membership_stale = False
            self._others = [each for each in await self._nodes.all() if self._is_other(each)]
            self._known = frozenset({self._own, *(each.node_id for each in self._others)})
            self._seen_s = now

    def invalidate_membership(self) -> None:
        """Read the other nodes again the next time, because an unknown one may claim jobs."""
        self._is_membership_stale = True

    def invalidate_routes(self) -> None:
        """Read the routes again the next time, because they have changed."""
        self._routed = ""

    def _is_other(self, node: Node) -> bool:
        return node.node_id != self._own and node.state in _LIVE and node.capacity > 0

    @property
    def count(self) -> int:
        """Return the number of nodes that claim jobs, including this one."""
        return len(self._others) + 1

    @property
    def is_draining(self) -> bool:
        """Return whether this node is draining."""
        return self._own in self._now.drains

    def rules_of(self, kind: str) -> KindRules:
        """Return the rules of a kind."""
        return self._now.rules.get(kind) or KindRules(kind)

    def is_open(self, kind: str) -> bool:
        """Return whether this node may claim jobs of a kind, which may be paused or routed elsewhere."""
        if self.is_draining or self.rules_of(kind).is_paused:
            return False
        routes = self.routing.routes
        pattern = most_specific(routes, kind)
        return pattern is None or routes[pattern] == self._own

    def is_plain(self, kind: str) -> bool:
        """Return whether no route, concurrency limit or rate limit applies to a kind."""
        rules = self.rules_of(kind)
        is_routed = most_specific(self.routing.routes, kind) is not None
        return not is_routed and rules.max_running is None and rules.rate is None

    def spend_left(self, agent: str | None) -> list[SpendLeft]:
        """Return what is left of the budgets of tokens and money of all accounts, and of an agent."""
        is_agents, own = agent_of(""), None if agent is None else agent_of(agent)
        return [
            each
            for each in self._now.spend_left
            if each.subject == own or not each.subject.startswith(is_agents)
        ]

    def has_budget(self, agent: str) -> bool:
        """Return whether an agent has a budget of tokens or money."""
        own = agent_of(agent)
        return any(each.subject == own for each in self._now.spend_left)

    def can_spend(self, agent: str) -> bool:
        """Return whether an agent's budgets have left what an attempt reserves of them by default."""
        own = agent_of(agent)
        return all(
            each.left >= each.reserve and each.left > 0
            for each in self._now.spend_left
            if each.subject == own
        )

    def is_any_charged(self, jobs: Iterable[Job], agent: str) -> bool:
        """Return whether any of these jobs is charged to a budget of tokens or money."""
        if not self._now.spend_left:  # the usual case
            return False
        subjects = {agent_of(agent), *(account_of(each.account) for each in jobs)}
        return any(each.subject in subjects for each in self._now.spend_left)

    def choose(self, jobs: Sequence[Claimable], capacity: int, free: int, *, is_deep: bool) -> ClaimChoice:
        """Choose up to `free` jobs to claim now. All jobs must be of kinds that are open to this node.

        Within a priority, jobs for which this node ranks first come first. A job of another node becomes
        claimable when its patience is over. With a deep backlog (`is_deep`: more jobs than were read) every
        node has enough of its own, so this node claims others' jobs only if it has none of its own and much
        free capacity, or if they are long overdue.
        """
        if not capacity:
            return ClaimChoice([], None)  # the worker was stopped meanwhile
        now_ms = self._clock.now_ms
        anyones_ms = now_ms - patience_ms(self.count, self._grace_ms)
        due: dict[int, tuple[list[Claimable], list[Claimable]]] = {}
        later_ms: list[int] = []
        for job in jobs:
            ranking = self._ranking(job.kind, capacity, is_deep)
            if job.not_before_ms <= anyones_ms:
                is_own = ranking.is_first(job.job_id, job.seed)
            else:
                rank = ranking.place(job.job_id, job.seed)
                due_ms = job.not_before_ms + patience_ms(rank, self._grace_ms)
                if due_ms > now_ms:
                    later_ms.append(due_ms)
                    continue
                is_own = rank == 0
            due.setdefault(job.priority, ([], []))[not is_own].append(job)
        take: list[Claimable] = []
        for _, (own, others) in sorted(due.items(), reverse=True):
            take += own
            if not is_deep or (not own and free >= capacity * _MANY_FREE):
                take += self._least_contended(others, capacity) if is_deep else others
            elif not own:
                take += [job for job in others if now_ms - job.not_before_ms > _OVERDUE_MS]
                later_ms += [job.not_before_ms + _OVERDUE_MS + 1 for job in others]
        of_others = {job.id for _, others in due.values() for job in others}
        is_others_turn = any(job.id in of_others for job in take[:free])
        own_count = sum(len(own) for own, _ in due.values())
        return ClaimChoice(take[:free], min(later_ms, default=None), is_others_turn, own_count)

    def _least_contended(self, others: Sequence[Claimable], capacity: int) -> list[Claimable]:
        """Return others' jobs in the order in which to claim them without getting in anyone's way.

        First the overdue ones, which their nodes leave alone; then the ones for which this node ranks best,
        last ones first, since the nodes that rank before it claim the first ones.
        """
        now_ms = self._clock.now_ms
        overdue = [job for job in others if now_ms - job.not_before_ms > _OVERDUE_MS]
        rest = [job for job in reversed(others) if now_ms - job.not_before_ms <= _OVERDUE_MS]
        return overdue + sorted(rest, key=lambda job: self._rank(job, capacity, is_deep=True))

    def _rank(self, job: Claimable, capacity: int, *, is_deep: bool) -> int:
        return self._ranking(job.kind, capacity, is_deep).place(job.job_id, job.seed)

    def _ranking(self, kind: str, capacity: int, is_deep: bool) -> Ranking:
        """Return the ranking of the nodes that handle a kind and have free capacity.

        With a deep backlog, nodes at capacity are ranked too: they will have free capacity soon.
        """
        ranking = self._rankings.get(kind)
        if ranking is None:
            weights = {self._own: capacity}
            # A kind with a route that is open to this node is routed to it alone.
            if most_specific(self.routing.routes, kind) is None:
                weights |= {
                    node.node_id: node.capacity
                    for node in self._others
                    if node.node_id not in self._now.drains
                    and (is_deep or node.capacity > self._now.places.get(node.node_id, 0))
                    and covers(kind, _parse_patterns(node.kinds))
                }
            ranking = self._rankings[kind] = Ranking(self._own, weights)
        return ranking


@lru_cache(maxsize=1_024)
def _parse_patterns(text: str) -> tuple[str, ...]:
    """Return the patterns of kinds that a node announces; none if the row is not one that a node writes."""
    try:
        patterns = orjson.loads(text)
    except orjson.JSONDecodeError:
        return ()
    return tuple(each for each in patterns if isinstance(each, str)) if isinstance(patterns, list) else ()
