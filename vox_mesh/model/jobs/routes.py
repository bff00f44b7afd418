"""Routes over time: the node that a kind of job was routed to when a claim was committed."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.model.base.canonical import parse
from vox_mesh.model.jobs.records import CLAIM, COMPLETE, SCHEDULE, most_specific
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.findings import ChainFinding
from vox_mesh.model.oplog.verification import READ_ERRORS, ROUTE, ChainWitness

_MAX_FINDINGS: Final = 1_000


class _RouteOp(NamedTuple):
    """An op of the owner about a route; no node: any may claim."""

    entry_id: int
    hlc: str
    pattern: str
    node_id: str | None
    author: str


class RouteHistory:
    """The routes that the owner has set, and when."""

    def __init__(self, witness: ChainWitness) -> None:
        self._witness = witness
        self._ops: list[_RouteOp] = []

    @property
    def patterns(self) -> set[str]:
        """Return all patterns that ever had a route."""
        return {op.pattern for op in self._ops if op.node_id is not None}

    def hear(self, entry: LogEntry) -> None:
        """Take in an op; it counts only if the owner signed it."""
        if entry.kind != ROUTE or entry.accepted != 1 or not self._witness.is_of_owner(entry):
            return
        try:
            payload: Any = parse(entry.payload)
            pattern, node_id = payload["kind"], payload["node"]
        except READ_ERRORS:
            return
        if isinstance(pattern, str) and isinstance(node_id, str | None):
            self._ops.append(_RouteOp(entry.id, entry.hlc, pattern, node_id, entry.author))

    def barred_from(self, kind: str, node_id: str, entry_id: int) -> str | None:
        """Return the node that a kind was routed to when another one claimed at this entry, or `None`.

        The author of a route is not barred by it: a claim in the same request can't have seen the route.
        """
        latest: dict[str, _RouteOp] = {}
        for op in self._ops:
            if op.entry_id < entry_id and (op.pattern not in latest or op.hlc > latest[op.pattern].hlc):
                latest[op.pattern] = op
        routes = {op.pattern: op for op in latest.values() if op.node_id is not None}
        pattern = most_specific(routes, kind)
        if pattern is None or node_id in (routes[pattern].node_id, routes[pattern].author):
            return None
        return routes[pattern].node_id


class RouteCheck:
    """Check claims against the routes: `learn` the kinds of all jobs, then `check` chain by chain."""

    def __init__(self, routes: RouteHistory) -> None:
        self._routes = routes
        self._patterns = routes.patterns
        self._kinds: dict[str, str] = {}
        self._open: dict[tuple[str, str, Any], ChainFinding] = {}
        self._findings: list[ChainFinding] = []

    @property
    def is_needed(self) -> bool:
        """Return whether there was ever a route."""
        return bool(self._patterns)

    def learn(self, entry: LogEntry) -> None:
        """Take in an entry that may schedule jobs of a kind that had a route."""
        for item in _items(entry, SCHEDULE):
            kind = item.get("kind")
            if isinstance(kind, str) and most_specific(self._patterns, kind) is not None:
                self._kinds.setdefault(str(item.get("job_id")), kind)

    def check(self, entry: LogEntry) -> None:
        """Check the next entry of a chain."""
        for item in _items(entry, CLAIM):
            job_id, node_id = str(item.get("job_id")), entry.author
            kind = self._kinds.get(job_id)
            routed_to = None if kind is None else self._routes.barred_from(kind, node_id, entry.id)
            if routed_to is not None:
                what = f"its claim of job {job_id} was not allowed: {kind} was routed to {routed_to}"
                finding = ChainFinding(entry.node_id, entry.seq, entry.op_id, what)
                self._open[entry.node_id, job_id, item.get("claim_token")] = finding
        for item in _items(entry, COMPLETE) if self._open else ():
            claim = self._open.pop((entry.node_id, str(item.get("job_id")), item.get("claim_token")), None)
            if claim is not None and len(self._findings) < _MAX_FINDINGS:
                what = claim.what.replace("claim", "completion", 1)
                self._findings.append(claim._replace(seq=entry.seq, op_id=entry.op_id, what=what))

    def findings(self) -> list[ChainFinding]:
        """Return what was found, after the last entry."""
        return [*self._findings, *self._open.values()]


def is_claim_of(entry: LogEntry, job_id: str, claim_token: Any) -> bool:
    """Return whether an entry claimed a job under this token."""
    items = _items(entry, CLAIM)
    return any((each.get("job_id"), each.get("claim_token")) == (job_id, claim_token) for each in items)


def _items(entry: LogEntry, kind: str) -> list[dict[str, Any]]:
    """Return the items of an accepted op of this kind that changed something; of claims, only new ones."""
    if entry.kind != kind or entry.accepted != 1:
        return []
    try:
        payload = orjson.loads(entry.payload)
        result = {} if entry.result is None else orjson.loads(entry.result)
        moved = set(orjson.loads(result["moved"])) if "moved" in result else None
        if payload.get("renews"):
            return []
        return [item for item in payload["jobs"] if moved is None or item["job_id"] in moved]
    except READ_ERRORS:
        return []
