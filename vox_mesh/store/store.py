"""Read, write and watch one database through a single interface, whatever its backend."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, Self

from vox_mesh.errors import BadValue, DatabaseBusy, DatabaseUnavailable, MeshError, NoAnswer, StoreClosed
from vox_mesh.model.base.backends import Backend
from vox_mesh.observability.deprecation import RenamedAttributes
from vox_mesh.store.background import BackgroundFaults, cancel_and_wait
from vox_mesh.store.batch import Batch, BatchResult
from vox_mesh.store.engine import Engine, EngineFacts, ShrinkingEngine
from vox_mesh.store.engines.thread import to_the_end
from vox_mesh.store.engines.wal import WalStatus, WalWatch
from vox_mesh.store.replica.read_watermark import ReadWatermark
from vox_mesh.store.rows import Rows, Value
from vox_mesh.store.schema.schema import ensure_schema, versions_at
from vox_mesh.store.script import MAX_SCRIPT_BYTES, Outcome, Script, Statement, Verdict, WriterId
from vox_mesh.store.stats import PING, CountedEngine, StoreStats
from vox_mesh.store.watch.changes import Change, ChangeCount, ChangeLoop, Changes, SomeChanges
from vox_mesh.store.watch.listeners import Listener, ServerPoll
from vox_mesh.store.write.combiner import Combiner
from vox_mesh.store.write.idempotency_keys import IdempotencyKeyPruner
from vox_mesh.store.write.interceptor import DirectDatabase, WriteInterceptor
from vox_mesh.store.write.retry import RetryingCaller
from vox_mesh.store.write.sender import Sender

if TYPE_CHECKING:
    from vox_mesh.store.replica.replica import Progress, Replica, ReplicaStatus
    from vox_mesh.store.slots import Slot
    from vox_mesh.store.spool.spool import SpoolStatus
    from vox_mesh.store.spool.spool_queue import SpoolQueue
    from vox_mesh.store.write.breaker import Breaker

_CLOSE_TIMEOUT_S: Final = 5.0
_RETRY_DELAY_S: Final = 1.0
_PING_TIMEOUT_S: Final = 2.0
_WATCH_READ_TIMEOUT_S: Final = 3.0  # a watch reports an unreachable database within 5 s


class StoreStatus(NamedTuple):
    """State of the store, for `db status` and monitoring. Without `engine`, the database does not answer."""

    backend: Backend
    engine: EngineFacts | None
    schema_version: int
    breaker: str
    waiting: int
    spool: SpoolStatus | None
    replica: ReplicaStatus | None


class Store(RenamedAttributes):
    """One process's access to the shared database.

    `open_store` opens it. Close it, or use it with `async with`.
    """

    _RENAMED: ClassVar = {"home": "backend", "tenant": "writer_id", "traffic": "stats"}

    def __init__(
        self,
        backend: Backend,
        engine: Engine,
        writer_id: WriterId,
        *,
        timeout: float,
        is_remote: bool = False,
        breaker: Breaker | None = None,
        spool_queue: SpoolQueue | None = None,
        slot: Slot | None = None,
        changes: Changes | None = None,
        listener: Listener | None = None,
        watermark: ReadWatermark | None = None,
        replica: Replica | None = None,
        interceptor: WriteInterceptor | None = None,
        stats: StoreStats | None = None,
        wal: WalWatch | None = None,
        answer_now: Callable[[Statement], Rows | None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.backend = backend
        self.writer_id = writer_id
        self.mesh_id: tuple[str, str] = writer_id.mesh_id
        self.stats = StoreStats() if stats is None else stats
        self.is_remote = is_remote or backend is Backend.SERVER
        """Whether the database is reached over a network."""
        self._server: CountedEngine | None = None
        if self.is_remote:
            clock = monotonic if watermark is None else watermark.monotonic
            on_write = (lambda asked_at: None) if replica is None else replica.note_write
            engine = self._server = CountedEngine(engine, self.stats.requests, clock, on_write)
        self._engine = engine
        self._monotonic = monotonic
        self._timeout = timeout
        self._caller = RetryingCaller(breaker, chance=chance)
        self.spool_queue = spool_queue
        self._slot = slot
        self._wal = wal
        self._answer_now = answer_now
        self._replica = replica
        self._changes = Changes() if changes is None else changes
        self._server_poll: ServerPoll | None = None
        if watermark is not None:  # a server, which may or may not push its commits
            self._server_poll = ServerPoll(self._ping, lambda: self.is_pushed, watermark, self._changes)
        self._listener: Listener | None = self._server_poll or listener
        self._listener_task: asyncio.Task[None] | None = None
        self._schema_version = 0
        self._prepare_lock = asyncio.Lock()
        self._closed = False
        self._keeps_log = interceptor is not None
        key_pruner = IdempotencyKeyPruner(monotonic)
        database = DirectDatabase(engine, writer_id, self._prepare, self._prepare_again)
        self._combiner = Combiner(
            Sender(
                self._run, self._caller, writer_id, key_pruner, interceptor=interceptor, database=database
            ),
            self._caller,
            key_pruner,
            monotonic=monotonic,
            max_scripts=engine.max_scripts,
            spool_sink=spool_queue,
            stats=self.stats,
        )
        if spool_queue is not None:
            spool_queue.start(self._combiner.submit)

    # --- writing ---------------------------------------------------------------------------------

    async def write(self, script: Script, *, timeout: float | None = None) -> Outcome:
        """Apply the script atomically and exactly once, or raise the error that prevented it."""
        self._refuse_if_closed()
        if script.op is not None and not self._keeps_log:
            raise BadValue("this store keeps no log", hint="open it with Mesh.open")
        (verdict,) = await self._combiner.submit((script,), self._timeout if timeout is None else timeout)
        if isinstance(verdict, MeshError):
            raise verdict
        return verdict

    async def write_all(self, scripts: Sequence[Script], *, timeout: float | None = None) -> list[Verdict]:
        """Apply scripts in order, in one request. Return an outcome or an error for each.

        Each script succeeds or fails independently of the others.
        """
        self._refuse_if_closed()
        if not scripts:
            return []
        if not self._keeps_log and any(script.op is not None for script in scripts):
            raise BadValue("this store keeps no log", hint="open it with Mesh.open")
        if sum(script.weight for script in scripts) > MAX_SCRIPT_BYTES:
            too_large = f"the scripts' values take more than {MAX_SCRIPT_BYTES} bytes in all"
            raise BadValue(too_large, hint="write them in parts")
        return await self._combiner.submit(scripts, self._timeout if timeout is None else timeout)

    async def _run(self, batch: Batch) -> BatchResult:
        if not self._schema_version:
            await self._prepare()
        commit, listener = self._engine.run(batch), self._listener if self._listener_task else None
        result = await (commit if listener is None else listener.own_commit(commit))
        if self._replica is None or not self._replica.is_pushed:
            self._changes.bump()
        return result

    # --- reading ---------------------------------------------------------------------------------

    async def read(
        self, sql: str, params: Sequence[Value] = (), *, fresh: bool = False, timeout: float | None = None
    ) -> Rows:
        """Run a query on committed data, never older than this process has already seen.

        An up-to-date replica answers if there is one; with `fresh`, always the database itself.
        """
        self._refuse_if_closed()
        statement = Statement(sql, params)
        replica = self._replica if self._schema_version and not fresh else None
        answer_now = self._answer_now if replica is None else replica.answer_now
        rows = answer_now(statement) if answer_now is not None and self._schema_version else None
        if rows is not None:
            return rows
        deadline = self._deadline(timeout)
        if replica is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    rows = await replica.answer(statement)
        return await self._query(statement, deadline) if rows is None else rows

    def _deadline(self, timeout: float | None) -> float:
        return asyncio.get_running_loop().time() + (self._timeout if timeout is None else timeout)

    async def _query(self, statement: Statement, deadline: float) -> Rows:
        """Run a query on the database itself, not on the replica."""
        loop = asyncio.get_running_loop()
        fault: DatabaseUnavailable | None = None

        async def attempt() -> Rows:
            nonlocal fault
            self._refuse_if_closed()  # a retry must not reopen a connection
            try:
                await self._prepare()
                return await self._engine.query(statement)
            except DatabaseUnavailable as error:
                fault = error
                raise

        try:
            async with asyncio.timeout_at(deadline):
                return await self._caller.call(attempt, lambda: loop.time() < deadline)
        except TimeoutError:
            if fault is None:
                fault = NoAnswer("no answer came before the deadline")
                self._caller.note(fault)
            raise fault from None

    async def _ping(self) -> Rows:
        return await self._query(PING, self._deadline(_PING_TIMEOUT_S))

    # --- watching --------------------------------------------------------------------------------

    @property
    def change_count(self) -> int:
        """Return a number that rises with every known commit.

        Take it before you read, then pass it to `changed`.
        """
        return self._changes.count

    async def changed(self, since: int) -> int:
        """Wait for a commit after the count was `since`, or a spurious wake-up; return the new count."""
        return await self._changed(since, self._changes)

    async def _changed(self, since: int, counted: ChangeCount) -> int:
        self._refuse_if_closed()
        if self._listener_task is None and self._listener is not None:
            running = self.faults.keep_running("listener", partial(self._listen, self._listener))
            self._listener_task = asyncio.create_task(running, name="vox-mesh-listener")
        count = await counted.after(since)
        self._refuse_if_closed()
        return count

    def changes(
        self, *, since: int | None = None, interval_s: float | None = None, debounce_s: float = 0.0
    ) -> ChangeLoop:
        """Repeat work after each commit: `async for turn in store.changes(): ...`.

        The first turn comes at once; with `since`, when the count differs from it. A turn comes at least
        every `interval_s` seconds, and `debounce_s` seconds after the commit that causes it.
        """
        return ChangeLoop(self, since=since, interval_s=interval_s, debounce_s=debounce_s)

    @property
    def but_heartbeats(self) -> SomeChanges:
        """Return the commits without those known to be nothing but heartbeats of nodes."""
        return SomeChanges(self, self._changes.but_heartbeats, self._changed)

    async def _listen(self, listener: Listener) -> None:
        """Listen for commits until cancelled."""
        while True:
            await listener.listen()
            await asyncio.sleep(_RETRY_DELAY_S)

    async def watch(self, sql: str, params: Sequence[Value] = ()) -> AsyncGenerator[Change, None]:
        """Yield the query's answer now, whenever it changes, and when the connection to the database is lost.

        A slow consumer skips intermediate answers and gets the latest one. While the database is
        unreachable there is no new answer; the watch resumes when it is back.
        """
        last: Change | None = None
        self._changes.watches += 1
        try:
            async for turn in self.changes():
                now = last if self._is_away else await self._read_change(sql, params)
                if now is None or self._is_away:
                    turn.wait_at_most(_RETRY_DELAY_S)
                    now = now if last is None else Change(last.rows, in_touch=False)
                if now is not None and now != last:
                    last = now
                    yield now
        finally:
            self._changes.watches -= 1

    async def _read_change(self, sql: str, params: Sequence[Value]) -> Change | None:
        """Return the query's current answer; `None` while the database is unreachable."""
        try:
            rows = await self.read(sql, params, timeout=min(_WATCH_READ_TIMEOUT_S, self._timeout))
        except DatabaseUnavailable:
            return None
        is_in_touch = self._replica is None or self._replica.is_in_touch
        return Change(rows, in_touch=not rows.age_s or is_in_touch)

    @property
    def is_pushed(self) -> bool:
        """Return whether the server pushes its commits to the replica now."""
        return self._replica is not None and self._replica.is_pushed

    @property
    def _is_away(self) -> bool:
        """Return whether the database is known not to answer, so that reads need not time out."""
        return self._server_poll is not None and self._server_poll.is_away and not self.is_pushed

    @property
    def is_in_touch(self) -> bool:
        """Return whether current committed data can be read, as far as is known."""
        return not self._is_away and (self._replica is None or self._replica.is_in_touch)

    @property
    def is_unreachable(self) -> bool:
        """Return whether the server is known to be unreachable. A late answer is no proof of that.

        It is unreachable while the circuit breaker is open, after a connection attempt failed, and while
        the replica is out of touch.
        """
        if self._server is None:
            return False
        from vox_mesh.store.replica.replica import ReplicaState  # imported late: only servers have replicas

        breaker, replica = self._caller.breaker, self._replica
        if self._server.is_refused or (breaker is not None and breaker.is_rejecting):
            return True
        if replica is None or replica.is_in_touch:
            return False
        return replica.status().state is ReplicaState.OUT_OF_TOUCH

    @property
    def slot_name(self) -> str | None:
        """Return the name of the slot that this store owns."""
        return None if self._slot is None else self._slot.name

    @property
    def circuit(self) -> str:
        """Return the circuit breaker's state; `off` without a breaker."""
        breaker = self._caller.breaker
        return "off" if breaker is None else breaker.state

    @property
    def replica_status(self) -> ReplicaStatus | None:
        """Return the replica's status, if there is a replica."""
        return None if self._replica is None else self._replica.status()

    @property
    def is_busy(self) -> bool:
        """Return whether writes are in flight or queued."""
        return self._combiner.is_busy

    @property
    def under_way_s(self) -> float:
        """Return the seconds since the request in flight was sent; 0 without one."""
        return self._combiner.under_way_s

    @property
    def scripts_waiting(self) -> int:
        """Return the number of queued scripts."""
        return self._combiner.scripts_waiting

    async def spooled(self) -> SpoolStatus | None:
        """Return the spool's status, if there is a spool."""
        return None if self.spool_queue is None else await self.spool_queue.status()

    @property
    def wal_status(self) -> WalStatus | None:
        """Return the status of the file backend's write-ahead log."""
        return None if self._wal is None else self._wal.status

    @property
    def unwritable_s(self) -> float:
        """Return the seconds for which all writes of this process have failed; 0 while writes succeed."""
        since = self.stats.unwritable_since
        return 0.0 if since is None else self._monotonic() - since

    def blind_s(self, rows: Rows) -> float:
        """Return the seconds for which no heartbeat could be read or written.

        Until it is 0, a missing heartbeat proves nothing.
        """
        return max(0.0 if self.is_in_touch else rows.age_s, self.unwritable_s)

    @property
    def faults(self) -> BackgroundFaults:
        """Return the unexpected exceptions of this process's background tasks."""
        return self.stats.faults

    @property
    def is_spooling(self) -> bool:
        """Return whether the spool holds writes."""
        return self.spool_queue is not None and not self.spool_queue.is_empty

    @property
    def is_prepared(self) -> bool:
        """Return whether the database has answered and has its schema."""
        return self._schema_version > 0

    # --- lifecycle ------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Create or check the schema. A busy database is retried until the deadline."""
        deadline = self._monotonic() + self._timeout
        busy = True

        async def attempt() -> None:
            nonlocal busy
            try:
                await self._prepare()
            except DatabaseUnavailable as fault:
                busy = isinstance(fault, DatabaseBusy)
                raise

        await self._caller.call(attempt, lambda: busy and self._monotonic() < deadline)

    async def _prepare(self) -> None:
        """Create or check the schema, once."""
        if self._schema_version:
            return
        async with self._prepare_lock:
            if not self._schema_version:
                self._schema_version = await ensure_schema(self._engine)

    async def _prepare_again(self) -> bool:
        """Migrate a database that was rolled back to an older schema. Return whether it was.

        A database without a schema is left alone: a backup may be about to be restored into it.
        """
        version, _ = await versions_at(self._engine.query)
        if not 0 < version < self._schema_version:
            return False
        self._schema_version = 0
        await self._prepare()
        return True

    @property
    def file(self) -> ShrinkingEngine | None:
        """Return the file that is the database; `None` if it is no file of this process."""
        return self._engine if isinstance(self._engine, ShrinkingEngine) else None

    async def drained(self) -> None:
        """Wait until the spool is empty."""
        if self.spool_queue is not None:
            await self.spool_queue.drained()

    async def synced(self, progress: Progress = lambda done, total: None) -> None:
        """Wait until the replica, if there is one, holds everything committed before this call."""
        if self._replica is not None:
            await self._replica.wait_until_caught_up(progress, self._timeout)

    async def caught_up(self) -> bool:
        """Wait briefly until the replica shows what this process has seen. Return whether it had to wait."""
        return self._replica is not None and await self._replica.caught_up()

    async def status(self) -> StoreStatus:
        """Return the state of the store."""
        facts: EngineFacts | None = None
        with suppress(DatabaseUnavailable):
            facts = await self._engine.facts()
        return StoreStatus(
            backend=self.backend,
            engine=facts,
            schema_version=self._schema_version,
            breaker=self.circuit,
            waiting=self._combiner.depth,
            spool=await self.spooled(),
            replica=self.replica_status,
        )

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreClosed("the store is closed")

    async def close(self) -> None:
        """Finish writes in flight and release all resources, even if cancelled. May be called twice."""
        if not self._closed:
            self._closed = True
            await to_the_end(asyncio.create_task(self._close(), name="vox-mesh-close"))

    async def _close(self) -> None:
        async with AsyncExitStack() as ending:  # runs in reverse order, and each callback even if others fail
            if self._slot is not None:
                ending.callback(self._slot.release)
            ending.push_async_callback(self._engine.close)
            if self._replica is not None:
                ending.push_async_callback(self._replica.close)
            if self.spool_queue is not None:
                ending.push_async_callback(self.spool_queue.close)
            ending.push_async_callback(self._combiner.close, _CLOSE_TIMEOUT_S)
            if self.spool_queue is not None:
                ending.push_async_callback(self.spool_queue.stop_replaying)
            if self._listener_task is not None:
                ending.push_async_callback(cancel_and_wait, self._listener_task)
            self._changes.bump()  # waiters wake and find the store closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
