"""The retention of the mesh: its policies, the progress of pruning, and passes of it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from vox_mesh.errors import BadValue, LockHeld, Refused, StaleFence
from vox_mesh.locks.leadership import Leadership
from vox_mesh.locks.locks import Locks
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.nodes.features import PRUNING_KNOWN
from vox_mesh.model.retention.ops import SET_RETENTION
from vox_mesh.model.retention.policies import ALL_KINDS, Policy, RetentionPolicies, checked_policy
from vox_mesh.model.retention.subjects import MIN_AGE_MS, Subject
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.nodes.nodes import Features
from vox_mesh.oplog.grants.permits import Permits
from vox_mesh.runtime.retention.pruner import Guard, Limits, Pruner, Swept
from vox_mesh.runtime.retention.sizes import Sizes
from vox_mesh.runtime.retention.space import give_back
from vox_mesh.runtime.retention.sweep import SQL, Sweep
from vox_mesh.runtime.retention.sweeps import SWEEPS, UPKEEP
from vox_mesh.store.script import Op, Script, Statement, guard
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

OFFICE: Final = "retention"
"""The name of the leadership."""

ARTIFACTS_KNOWN: Final = 50
"""The schema version since which code writes when an artifact was used, and removes files."""

TOO_MANY: Final = "too_many_policies"
"""The refusal of one more policy than there may be."""

WHOLE: Final = ""
"""In place of a subject: the whole pass."""

_LEASE_S: Final = 60.0
_DEAD_FOR: Final = 30  # times as long as acknowledged messages
_MAX_POLICIES: Final = 1_000
_PASS: Final = Limits(20_000, 60.0)
_WHOLE_PASS: Final = Limits(10**9, 24 * 3_600.0)


class PruneProgress(NamedTuple):
    """How far pruning is, of a subject or of the whole."""

    subject: str
    position: int
    pruned: int
    needed: int
    needed_so_far: int
    attempted_ms: int
    completed_ms: int | None


class Retention:
    """Sets and shows the policies, and prunes what is past them."""

    def __init__(
        self,
        store: Store,
        clock: MeshClock,
        locks: Locks,
        permits: Permits,
        features: Features,
        monotonic: Callable[[], float],
        message_retention_s: float,
    ) -> None:
        """`message_retention_s` applies to messages without a policy; to dead letters, 30 times as long."""
        self._store = store
        self._clock = clock
        self._permits = permits
        self._features = features
        self._monotonic = monotonic
        self.sizes = Sizes(store, clock)
        message_ms = max(MIN_AGE_MS, round(message_retention_s * 1_000))
        self._defaults = {
            Subject.MESSAGES: message_ms,
            Subject.DEAD_LETTERS: _DEAD_FOR * message_ms,
        }
        self._leadership = Leadership(OFFICE, store, locks, clock, monotonic, log_level=logging.DEBUG)

    # --- policies --------------------------------------------------------------------------------

    async def policies(self) -> RetentionPolicies:
        """Return the policies in force."""
        rows = await self._store.read(SQL["policies"], self._store.mesh_id)
        return RetentionPolicies(
            (each for row in rows if (each := _policy_of(*row)) is not None), self._defaults
        )

    async def set(
        self,
        subject: str,
        *,
        kind: str = ALL_KINDS,
        age_ms: int | None,
        max_rows: int | None = None,
        max_bytes: int | None = None,
    ) -> Policy:
        """Set how long rows of a subject, or of one kind of it, are kept; return the policy.

        `None`: whatever their age, their number or their size.
        """
        policy = checked_policy(subject, kind, age_ms, max_rows, max_bytes)
        limits = {"age_ms": age_ms, "max_rows": max_rows}
        if max_bytes is not None:
            limits["max_bytes"] = max_bytes
        payload = canonical({"subject": policy.subject.value, "kind": kind, **limits})
        values = (*self._store.mesh_id, policy.subject.value, kind, age_ms, max_rows, max_bytes)
        room = (*self._store.mesh_id, _MAX_POLICIES)
        has_room = guard(f"({SQL['count_policies']}) <= ?3", room, refusal=TOO_MANY)
        try:
            await self._permits.write_op(
                Op(SET_RETENTION, payload), Statement(SQL["set_policy"], values), has_room
            )
        except Refused as refused:
            if refused.reason != TOO_MANY:
                raise
            raise BadValue(
                f"policy not set: there are {_MAX_POLICIES} policies already",
                hint="remove one with `vox-mesh db retention set SUBJECT --kind KIND --default`",
            ) from None
        return policy

    async def unset(self, subject: str, *, kind: str = ALL_KINDS) -> None:
        """Remove a policy: the default applies again, or for a kind the policy of all kinds."""
        policy = checked_policy(subject, kind, None, None)
        payload = canonical({"subject": policy.subject.value, "kind": kind, "unset": True})
        values = (*self._store.mesh_id, policy.subject.value, kind)
        await self._permits.write_op(Op(SET_RETENTION, payload), Statement(SQL["unset_policy"], values))

    # --- pruning ---------------------------------------------------------------------------------

    async def progress(self, *, fresh: bool = False) -> dict[str, PruneProgress]:
        """Return how far pruning is, by subject, and of the whole."""
        rows = await self._store.read(SQL["progress"], self._store.mesh_id, fresh=fresh)
        return {row["subject"]: PruneProgress._make(row) for row in rows}

    async def may_prune(self) -> bool:
        """Return whether all live nodes take pruned jobs for pruned."""
        return await self._features.is_known_to_all(PRUNING_KNOWN)

    async def preview(self) -> list[Swept]:
        """Return what a whole pass would prune now."""
        pruner = self._pruner(await self.policies(), None, _WHOLE_PASS)
        return [await pruner.sweep_to_end(sweep) for sweep in await self._sweeps()]

    async def _sweeps(self) -> list[Sweep]:
        """Return the sweeps that all live nodes are ready for."""
        has_artifacts = await self._features.is_known_to_all(ARTIFACTS_KNOWN)
        return [sweep for sweep in SWEEPS if has_artifacts or sweep.subject is not Subject.ARTIFACTS]

    async def prune_all(self) -> list[Swept]:
        """Prune all that is past its policy.

        Raises:
            BadValue: A live node runs code that would take pruned jobs for lost.
            LockHeld: Another process prunes.
        """
        if not await self.may_prune():
            raise BadValue(
                "nothing pruned: a live node runs code that does not know retention",
                hint="upgrade all nodes; `vox-mesh nodes` shows their versions",
            )
        async with self._leading() as guard:
            if guard is None:
                leader = await self._leadership.leader()
                who = "another process" if leader is None else f"node {leader.node_id}"
                raise LockHeld(f"nothing pruned: {who} is pruning", hint="try again later")
            pruner = self._pruner(await self.policies(), guard, _WHOLE_PASS)
            done = []
            for sweep in await self._sweeps():
                done.append(await pruner.sweep_to_end(sweep))
                await self._record(done[-1], guard)
            await pruner.keep_up(UPKEEP)
            await self._record(_whole(done), guard)
            await give_back(self._store, lambda: pruner.is_over, self._monotonic)
        return done

    async def prune_some(self) -> list[Swept]:
        """Continue pruning, for a limited time; return what was pruned.

        Nothing is pruned while another node leads, or while a live node would take pruned jobs for lost ones.
        """
        if not await self.may_prune():
            return []
        async with self._leading() as guard:
            if guard is None:
                return []
            progress, done = await self.progress(fresh=True), list[Swept]()
            pruner = self._pruner(await self.policies(), guard, _PASS)
            sweeps = await self._sweeps()
            for sweep in sweeps:
                before = progress.get(sweep.subject)
                swept = await pruner.sweep(sweep, before.position if before else 0)
                earlier = before.needed_so_far if before else 0
                done.append(swept._replace(needed=swept.needed + earlier))
                await self._record(done[-1], guard)
                if pruner.is_over:
                    break
            is_whole = len(done) == len(sweeps)
            if is_whole:
                await pruner.keep_up(UPKEEP)
            whole = _whole(done)
            await self._record(whole if is_whole else whole._replace(position=1), guard)
            await self.sizes.keep_sample(await guard())
            await give_back(self._store, lambda: pruner.is_over, self._monotonic)
        return done

    def _pruner(self, policies: RetentionPolicies, guard: Guard | None, limits: Limits) -> Pruner:
        return Pruner(self._store, self._clock, policies, guard, limits, self._monotonic)

    @asynccontextmanager
    async def _leading(self) -> AsyncIterator[Guard | None]:
        """Lead while the body runs; the body gets `None` if another process leads."""

        async def guard() -> Statement:
            if not await self._leadership.keep(_LEASE_S):
                raise StaleFence
            return self._leadership.guard()

        if not await self._leadership.keep(_LEASE_S):
            yield None
            return
        try:
            yield guard
        finally:
            await self._leadership.resign()

    async def _record(self, swept: Swept, guard: Guard) -> None:
        values = (swept.subject, swept.position, swept.pruned, swept.needed, int(swept.is_complete))
        record = Statement(SQL["record_progress"], (*self._store.mesh_id, *values))
        await self._store.write(Script(await guard(), record))
        if swept.pruned and swept.subject:
            _log.info("rows pruned: subject=%s rows=%d needed=%d", swept.subject, swept.pruned, swept.needed)


def _whole(done: Sequence[Swept]) -> Swept:
    """Return the sum of the sweeps of a pass."""
    return Swept(
        WHOLE,
        sum(each.pruned for each in done),
        sum(each.needed for each in done),
        max(each.position for each in done),
    )


def _policy_of(
    subject: str, kind: str, age_ms: int | None, max_rows: int | None, max_bytes: int | None
) -> Policy | None:
    """Return the policy of a row; `None` if no node can have written it, so that the default applies."""
    try:
        return checked_policy(subject, kind, age_ms, max_rows, max_bytes)
    except BadValue:
        return None
