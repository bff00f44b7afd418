"""The worker: runs jobs while it is started.

Its claim loop surveys the queue, selects jobs and claims them; its executor starts, runs and completes each
of them, while its leases are renewed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import ClassVar, Final

from vox_mesh.errors import BadValue, DatabaseUnavailable, MeshError, StaleIncarnation, StoreClosed
from vox_mesh.heartbeat.presence import Presence
from vox_mesh.jobs.exec.policy import ExecPolicy
from vox_mesh.jobs.jobs import Jobs
from vox_mesh.jobs.proof.artifacts import Artifacts
from vox_mesh.jobs.steps.step_services import StepServices
from vox_mesh.jobs.worker.capacity import DEFAULT_CONCURRENCY, Capacity
from vox_mesh.jobs.worker.chooser import Chooser
from vox_mesh.jobs.worker.claim_loop import ClaimLoop
from vox_mesh.jobs.worker.claimer import ClaimReconciler, JobClaimer
from vox_mesh.jobs.worker.executor import Executor, WorkerStats
from vox_mesh.jobs.worker.finisher import Finisher
from vox_mesh.jobs.worker.follow_up import FollowUp
from vox_mesh.jobs.worker.handlers import F, HandlerSet
from vox_mesh.jobs.worker.kind_limits import set_kind_limits
from vox_mesh.jobs.worker.leases import Leases
from vox_mesh.jobs.worker.limits import WorkerLimits
from vox_mesh.model.base.durations import Duration, seconds_of
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.policy_roots import PolicyRoots
from vox_mesh.observability.deprecation import RenamedAttributes
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_RETRY_DELAY_S: Final = 1.0
_STOP_GRACE_S: Final = 5.0
_SETTLE_S: Final = 2.0


class Worker(RenamedAttributes):
    """Runs jobs with bounded concurrency: `async with mesh.worker.running()`."""

    _RENAMED: ClassVar = {"in_hand": "running_count"}

    def __init__(
        self,
        store: Store,
        jobs: Jobs,
        artifacts: Artifacts,
        presence: Presence,
        chooser: Chooser,
        claimer: JobClaimer,
        reconciler: ClaimReconciler,
        leases: Leases,
        finisher: Finisher,
        limits: WorkerLimits,
        policy: ExecPolicy | None,
        policy_roots: PolicyRoots | None,
        send_heartbeat: Callable[[], Awaitable[object]],
        steps: StepServices,
        chance: Callable[[], float],
        tick_s: float,
    ) -> None:
        self._store = store
        self._tick_s = tick_s
        self._jobs = jobs
        self._artifacts = artifacts
        self._presence = presence
        self._chooser = chooser
        self._claimer = claimer
        self._reconciler = reconciler
        self._leases = leases
        self._finisher = finisher
        self._send_heartbeat = send_heartbeat
        self._wake = asyncio.Event()
        self._follow_up = FollowUp()
        self._tasks: list[asyncio.Task[None]] = []  # claiming, listening, verifying
        self._capacity = capacity = Capacity(presence.activity, policy, policy_roots)
        self._executor = Executor(
            store=store,
            jobs=jobs,
            artifacts=artifacts,
            presence=presence,
            capacity=capacity,
            limits=limits,
            leases=leases,
            finisher=finisher,
            reconciler=reconciler,
            steps=steps,
            chance=chance,
            on_free=self._attempt_ended,
            is_process_ending=lambda: any(task.cancelling() for task in self._tasks[-1:]),
        )
        self._claim_loop = ClaimLoop(
            store=store,
            jobs=jobs,
            presence=presence,
            capacity=capacity,
            limits=limits,
            leases=leases,
            chooser=chooser,
            claimer=claimer,
            reconciler=reconciler,
            executor=self._executor,
            wake=self._wake,
            follow_up=self._follow_up,
            chance=chance,
        )
        self.handlers: HandlerSet = capacity.handlers
        self.stats: WorkerStats = self._executor.stats

    # --- handlers --------------------------------------------------------------------------------

    def handles(
        self, pattern: str, *, concurrency: int | None = None, lease: Duration | None = None
    ) -> Callable[[F], F]:
        """Register a handler for the kinds of a pattern: `@mesh.worker.handles("cortex.extract.*")`."""
        return self.handlers.handles(pattern, concurrency=concurrency, lease=lease)

    @property
    def kinds(self) -> list[str]:
        """Return the kind patterns that this worker handles."""
        return self._capacity.kinds

    # --- state -----------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Return whether the worker is started."""
        return bool(self._tasks)

    @property
    def running_count(self) -> int:
        """Return the number of running jobs."""
        return len(self._executor.running)

    @property
    def capacity(self) -> int:
        """Return the maximum number of concurrent jobs, 0 while the worker is stopped."""
        return self._capacity.total

    @property
    def stale_claims(self) -> int:
        """Return the number of renewals and completions rejected because the claim was over."""
        return self._leases.stale + self._finisher.stale

    @property
    def claims_sent(self) -> int:
        """Return the number of claim requests sent; one may claim several jobs."""
        return self._claimer.sent

    def fault(self, patience_s: float) -> str:
        """Return why the worker claims no jobs, or an empty string if it does."""
        if not self.is_running or any(task.done() for task in self._tasks):
            return "it does not run"
        if self._capacity.free <= 0:
            return ""  # at capacity
        consuming_ms = self._presence.activity.consuming_ms
        if consuming_ms is None:
            return "it has not looked for jobs yet"
        silent_s = (self._jobs.clock.now_ms - consuming_ms) / 1_000
        return f"it has not looked for jobs for {silent_s:.0f} s" if silent_s > patience_s else ""

    async def broken(self) -> None:
        """Wait until a task of the worker ends without `stop()`; raise the task's exception."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def idle(self) -> None:
        """Wait until no unfinished job of this worker's kinds is left."""
        async for turn in self._store.changes(interval_s=_RETRY_DELAY_S):
            with turn.retry_if_unavailable():
                situation = await self._jobs.queries.situation()
                holds_jobs = self._executor.running or situation.places.get(self._presence.node_id)
                is_busy = holds_jobs or self._reconciler.is_due
                if not is_busy and not any(self._capacity.handles(kind) for kind in situation.kinds):
                    return

    # --- lifecycle -------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(
        self,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        kinds: Iterable[str] = (),
        tags: Iterable[str] = (),
        grace: Duration = _STOP_GRACE_S,
    ) -> AsyncIterator[None]:
        """Run jobs until the end of the block, then drain: release jobs unfinished after `grace`."""
        grace_s = seconds_of("grace", grace)
        await self.start(concurrency=concurrency, kinds=kinds, tags=tags)
        try:
            yield
        finally:
            await self.stop(grace_s)

    async def start(
        self,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        kinds: Iterable[str] = (),
        tags: Iterable[str] = (),
    ) -> None:
        """Start claiming jobs of `kinds`, or of every kind that has a handler, without other tags."""
        if self.is_running or self._capacity.total:  # another call may be starting it
            raise BadValue("the worker is running already", hint="stop it first")
        self._capacity.open(concurrency, kinds, tags)
        self._finisher.timeout_s = None
        try:
            Manifest.model_rebuild()  # otherwise the first job would wait for that
            await self._artifacts.sweep()
            await asyncio.gather(self._announce(), self._finisher.warm_up())
            await set_kind_limits(self._store, self._jobs, self.handlers.max_running)
            # Read after the announcement: of workers that start together, later ones see earlier ones.
            with suppress(DatabaseUnavailable):
                await self._chooser.refresh_membership()
        except BaseException:
            self._capacity.close()
            self._capacity.update_activity()
            raise
        listening = self._store.faults.keep_running("worker-ear", self._listen, fatal=(StoreClosed,))
        self._tasks = [
            asyncio.create_task(self._claim_loop.run(), name="vox-mesh-worker"),
            asyncio.create_task(listening, name="vox-mesh-worker-ear"),
            asyncio.create_task(self._leases.run(), name="vox-mesh-leases"),
        ]

    async def stop(self, grace: Duration = _STOP_GRACE_S) -> None:
        """Drain the worker: claim no more, and release jobs that are unfinished after `grace`."""
        grace_s = seconds_of("grace", grace)
        if not self.is_running:
            return
        self._capacity.close()
        try:
            await self._stop_claiming()
            await self._executor.wait(grace_s)
            await self._release_unfinished()
        finally:
            await _cancel_all(*self._tasks, *self._executor.tasks)
            self._tasks = []
            self._leases.close()
        if self._store.is_spooling:
            return  # the announcement would only wait for its timeout
        with suppress(MeshError):  # otherwise the other nodes notice the missing heartbeats
            await self._announce()

    async def _stop_claiming(self) -> None:
        claiming, listening, _ = self._tasks
        self._wake.set()
        await asyncio.wait([claiming], timeout=_SETTLE_S)  # a claim in flight may get its answer
        await _cancel_all(claiming, listening)

    async def _release_unfinished(self) -> None:
        """Stop the running jobs, and write all results within a short time."""
        self._finisher.timeout_s = _SETTLE_S / 2
        self._executor.release_all()
        with suppress(TimeoutError, MeshError):
            async with asyncio.timeout(_SETTLE_S):
                await self._executor.wait()
                await self._finisher.close()
                if self._reconciler.is_due and self._reconciler.has_run:
                    await self._reconciler.run_once(self._executor.running)

    def _attempt_ended(self) -> None:
        self._follow_up.ask()
        self._wake.set()

    def reconcile(self) -> None:
        """Reconcile claims and leases with the database, for example after it was rolled back."""
        self._reconciler.request()
        self._leases.verify_soon()
        self._wake.set()

    async def catch_up(self) -> None:
        """Renew due leases, stop expired jobs, enter the phases that have begun, and look for jobs."""
        await self._executor.check_limits()
        self._wake.set()
        await self._leases.renew_due()

    async def _listen(self) -> None:
        # Without commits it looks once a tick, which shows that it takes work.
        async for _ in self._store.but_heartbeats.changes(interval_s=self._tick_s):
            self._wake.set()
            self._leases.verify_soon()

    async def _announce(self) -> None:
        """Announce kinds, capacity and load; if the database is unavailable, the next heartbeat does."""
        self._capacity.update_activity()
        try:
            await self._send_heartbeat()
        except (StaleIncarnation, StoreClosed):
            raise
        except MeshError as error:
            _log.warning("worker announcement failed: %s", error.line)


async def _cancel_all(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks and wait a bounded time for them; log the ones that ignore it."""
    for task in tasks:
        task.cancel()
    if tasks:
        _, pending = await asyncio.wait(tasks, timeout=_SETTLE_S)
        for task in pending:
            _log.error("task ignored its cancellation: task=%s", task.get_name())
