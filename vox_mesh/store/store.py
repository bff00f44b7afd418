"""The store: one way to write and one to read, whichever of the three homes the data has."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Self

from vox_mesh.errors import BadValue, DatabaseBusy, DatabaseUnavailable, MeshError, NoAnswer, StoreClosed
from vox_mesh.model.base.homes import Home
from vox_mesh.store.background import BackgroundFaults
from vox_mesh.store.batch import Batch, BatchResult
from vox_mesh.store.engine import Engine, EngineFacts
from vox_mesh.store.engines.thread import to_the_end
from vox_mesh.store.engines.wal import WalStatus, WalWatch
from vox_mesh.store.replica.floor import ReadWatermark
from vox_mesh.store.replica.replica import Progress, Replica, ReplicaState, ReplicaStatus
from vox_mesh.store.rows import Rows, Value
from vox_mesh.store.schema.schema import ensure_schema, versions_at
from vox_mesh.store.script import MAX_SCRIPT_BYTES, Outcome, Script, Statement
from vox_mesh.store.slots import Slot
from vox_mesh.store.spool.agent_queue import AgentQueue
from vox_mesh.store.spool.spool import SpoolStatus
from vox_mesh.store.stats import PING, CountedEngine, StoreStats
from vox_mesh.store.watch.changes import Change, Changes
from vox_mesh.store.watch.listening import Listener, ServerPoll
from vox_mesh.store.write.breaker import Breaker
from vox_mesh.store.write.combiner import Combiner
from vox_mesh.store.write.dispatcher import Sender
from vox_mesh.store.write.idempotency_keys import IdempotencyKeyPruner
from vox_mesh.store.write.journal import DirectDatabase, WriteInterceptor
from vox_mesh.store.write.request import Tenant, Verdict
from vox_mesh.store.write.retry import RetryingCaller

_CLOSE_S: Final = 5.0
_AGAIN_S: Final = 1.0
_PING_S: Final = 2.0
_LOOK_S: Final = 3.0  # whoever watches is to know within 5 s that the database is away


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """How the store stands: for `db status` and for monitoring. No `engine`: the database does not answer."""

    home: Home
    engine: EngineFacts | None
    schema_version: int
    breaker: str
    waiting: int
    spool: SpoolStatus | None
    replica: ReplicaStatus | None


class Store:
    """Writes scripts, answers queries. Opened by `open_store`; close it, or use it with `async with`."""

    def __init__(
        self,
        home: Home,
        engine: Engine,
        tenant: Tenant,
        *,
        timeout: float,
        is_remote: bool = False,
        breaker: Breaker | None = None,
        agent_queue: AgentQueue | None = None,
        slot: Slot | None = None,
        changes: Changes | None = None,
        listener: Listener | None = None,
        floor: ReadWatermark | None = None,
        replica: Replica | None = None,
        journal: WriteInterceptor | None = None,
        traffic: StoreStats | None = None,
        wal: WalWatch | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.home = home
        self.tenant = tenant
        self.traffic = StoreStats() if traffic is None else traffic
        self.is_remote = is_remote or home is Home.MESH
        """Whether the database is reached over a network, which may fail."""
        self._server: CountedEngine | None = None
        if self.is_remote:
            engine = self._server = CountedEngine(
                engine, self.traffic.requests, monotonic if floor is None else floor.monotonic
            )
            if replica is not None:
                engine.wrote = replica.written
        self._engine = engine
        self._monotonic = monotonic
        self._timeout = timeout
        self._carrier = RetryingCaller(breaker, chance=chance)
        self._agent_queue = agent_queue
        self._slot = slot
        self._wal = wal
        self._replica = replica
        self._changes = Changes() if changes is None else changes
        self._pulse: ServerPoll | None = None
        if floor is not None:  # a server, which may or may not push its commits
            self._pulse = ServerPoll(self._ping, lambda: self._is_pushed, floor, self._changes)
        self._listener: Listener | None = self._pulse or listener
        self._listening: asyncio.Task[None] | None = None
        self._schema_version = 0
        self._preparing = asyncio.Lock()
        self._closed = False
        self._keeps_log = journal is not None
        ledger = IdempotencyKeyPruner(monotonic)
        desk = DirectDatabase(engine, tenant, self._prepare, self._prepare_again)
        self._combiner = Combiner(
            Sender(self._run, self._carrier, tenant, ledger, journal=journal, desk=desk),
            self._carrier,
            ledger,
            monotonic=monotonic,
            max_scripts=engine.max_scripts,
            detour=agent_queue,
            traffic=self.traffic,
        )
        if agent_queue is not None:
            agent_queue.start(self._combiner.submit)

    # --- writing ---------------------------------------------------------------------------------

    async def write(self, script: Script, *, timeout: float | None = None) -> Outcome:
        """Apply the script, whole and once; raise what kept it from being applied."""
        self._refuse_if_closed()
        if script.op is not None:
            self._refuse_without_log()
        (verdict,) = await self._submit((script,), timeout)
        if isinstance(verdict, MeshError):
            raise verdict
        return verdict

    async def write_all(self, scripts: Sequence[Script], *, timeout: float | None = None) -> list[Verdict]:
        """Apply scripts in this order, in one request; an outcome, or the error as a value, for each.

        Each is applied or fails by itself.
        """
        self._refuse_if_closed()
        if not scripts:
            return []
        if any(script.op is not None for script in scripts):
            self._refuse_without_log()
        if sum(script.weight for script in scripts) > MAX_SCRIPT_BYTES:
            raise BadValue(
                f"the scripts' values take more than {MAX_SCRIPT_BYTES} bytes in all",
                hint="write them in parts",
            )
        return await self._submit(scripts, timeout)

    async def _submit(self, scripts: Sequence[Script], timeout: float | None) -> list[Verdict]:
        try:
            return await self._combiner.submit(scripts, self._timeout if timeout is None else timeout)
        except MeshError:
            self.traffic.failures += len(scripts)
            raise

    def _refuse_without_log(self) -> None:
        if not self._keeps_log:
            raise BadValue("this store keeps no log", hint="open it with Mesh.open")

    async def _run(self, batch: Batch) -> BatchResult:
        if not self._schema_version:
            await self._prepare()
        result = await self._engine.run(batch)
        if self._replica is None or not self._replica.is_pushed:
            self._changes.bump()
        return result

    # --- reading ---------------------------------------------------------------------------------

    async def read(
        self, sql: str, params: Sequence[Value] = (), *, fresh: bool = False, timeout: float | None = None
    ) -> Rows:
        """Answer a query from what is committed, never less than this process has seen before.

        The replica answers, where there is one that is up to date; with `fresh` the database itself.
        """
        self._refuse_if_closed()
        statement = Statement(sql, params)
        replica = self._replica if self._schema_version and not fresh else None
        rows = None if replica is None else replica.answer_now(statement)
        if rows is not None:
            return rows
        deadline = self._deadline(timeout)
        if replica is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    rows = await replica.answer(statement)
        return await self._ask(statement, deadline) if rows is None else rows

    def _deadline(self, timeout: float | None) -> float:
        return asyncio.get_running_loop().time() + (self._timeout if timeout is None else timeout)

    async def _ask(self, statement: Statement, deadline: float) -> Rows:
        """Have the database itself answer."""
        loop = asyncio.get_running_loop()
        fault: DatabaseUnavailable | None = None

        async def attempt() -> Rows:
            nonlocal fault
            self._refuse_if_closed()  # meanwhile: nothing is opened again
            try:
                await self._prepare()
                return await self._engine.query(statement)
            except DatabaseUnavailable as error:
                fault = error
                raise

        try:
            async with asyncio.timeout_at(deadline):
                return await self._carrier.carry(attempt, lambda: loop.time() < deadline)
        except TimeoutError:
            if fault is None:
                fault = NoAnswer("no answer came before the deadline")
                self._carrier.note(fault)
            raise fault from None

    async def _ping(self) -> Rows:
        return await self._ask(PING, self._deadline(_PING_S))

    # --- watching --------------------------------------------------------------------------------

    @property
    def change_count(self) -> int:
        """A number that rises with every commit we know of: take it before reading, then wait for another."""
        return self._changes.count

    async def changed(self, since: int) -> int:
        """Wait until something was committed, by anybody, after the count was `since`; the count now.

        It may rise without reason, but never stays when there was a commit.
        """
        self._refuse_if_closed()
        if self._listening is None and self._listener is not None:
            listening = self.faults.keep_running("listener", partial(self._listen, self._listener))
            self._listening = asyncio.create_task(listening, name="vox-mesh-listener")
        count = await self._changes.after(since)
        self._refuse_if_closed()
        return count

    async def _listen(self, listener: Listener) -> None:
        """Listen until cancelled: without it, watches would wait in vain."""
        while True:
            await listener.listen()
            await asyncio.sleep(_AGAIN_S)

    async def watch(self, sql: str, params: Sequence[Value] = ()) -> AsyncGenerator[Change, None]:
        """The query's answer now, and again whenever it has changed, or touch with the database was lost.

        Whoever takes long sees the latest answer next, not those in between. While the database is away
        there is no new answer; the watch goes on when it is back.
        """
        last: Change | None = None
        self._changes.watches += 1
        try:
            while True:
                seen = self._changes.count
                now = last if self._is_away else await self._look(sql, params)
                is_away = now is None or self._is_away
                if is_away and last is not None:
                    now = Change(last.rows, in_touch=False)
                if now is not None and now != last:
                    last = now
                    yield now
                with suppress(TimeoutError):
                    async with asyncio.timeout(_AGAIN_S if is_away else None):
                        await self.changed(seen)
        finally:
            self._changes.watches -= 1

    async def _look(self, sql: str, params: Sequence[Value]) -> Change | None:
        """The query's answer now; `None` while the database is away."""
        try:
            rows = await self.read(sql, params, timeout=min(_LOOK_S, self._timeout))
        except DatabaseUnavailable:
            return None
        is_in_touch = self._replica is None or self._replica.is_in_touch
        return Change(rows, in_touch=not rows.age_s or is_in_touch)

    @property
    def _is_pushed(self) -> bool:
        return self._replica is not None and self._replica.is_pushed

    @property
    def _is_away(self) -> bool:
        """Whether we know that the database does not answer: then nobody need wait to find out."""
        return self._pulse is not None and self._pulse.is_away and not self._is_pushed

    @property
    def is_in_touch(self) -> bool:
        """Whether, as far as we know, what is committed now can be read."""
        return not self._is_away and (self._replica is None or self._replica.is_in_touch)

    @property
    def is_unreachable(self) -> bool:
        """Whether the server is known to be unreachable. An answer that is late does not show that.

        It is unreachable while the circuit breaker is open, after a connection could not be made, and while
        the replica is out of touch.
        """
        if self._server is None:
            return False
        breaker, replica = self._carrier.breaker, self._replica
        return (
            (breaker is not None and breaker.refuses)
            or self._server.is_refused
            or (
                replica is not None
                and not replica.is_in_touch
                and replica.status().state is ReplicaState.OUT_OF_TOUCH
            )
        )

    @property
    def slot_name(self) -> str | None:
        """The slot that this store owns."""
        return None if self._slot is None else self._slot.name

    @property
    def circuit(self) -> str:
        """How the breaker stands; `off` where there is none."""
        breaker = self._carrier.breaker
        return "off" if breaker is None else breaker.state

    @property
    def replica_status(self) -> ReplicaStatus | None:
        """How the replica stands, where there is one."""
        return None if self._replica is None else self._replica.status()

    @property
    def is_busy(self) -> bool:
        """Whether writes are under way, or wait to be."""
        return self._combiner.is_busy

    @property
    def under_way_s(self) -> float:
        """For how long the request that is under way has been."""
        return self._combiner.under_way_s

    @property
    def scripts_waiting(self) -> int:
        """How many scripts wait for a request to take them."""
        return self._combiner.scripts_waiting

    async def spooled(self) -> SpoolStatus | None:
        """What waits in the spool, where there is one."""
        return None if self._agent_queue is None else await self._agent_queue.status()

    @property
    def wal_status(self) -> WalStatus | None:
        """How the write-ahead log of the file home stands."""
        return None if self._wal is None else self._wal.status

    @property
    def unwritable_s(self) -> float:
        """For how long the database has failed all writes of this process; 0: it takes them."""
        since = self.traffic.unwritable_since
        return 0.0 if since is None else self._monotonic() - since

    def blind_s(self, rows: Rows) -> float:
        """For how long no sign of life could be read or written: until it ends, silence means nothing."""
        return max(0.0 if self.is_in_touch else rows.age_s, self.unwritable_s)

    @property
    def faults(self) -> BackgroundFaults:
        """The unexpected exceptions of this process's background tasks."""
        return self.traffic.faults

    @property
    def is_spooling(self) -> bool:
        """Whether writes wait in the spool."""
        return self._agent_queue is not None and not self._agent_queue.is_empty

    @property
    def is_prepared(self) -> bool:
        """Whether the database has answered, and its schema is there."""
        return self._schema_version > 0

    # --- life ------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Create or check the schema; a database that is only busy is asked again until the deadline."""
        deadline = self._monotonic() + self._timeout
        busy = True

        async def attempt() -> None:
            nonlocal busy
            try:
                await self._prepare()
            except DatabaseUnavailable as fault:
                busy = isinstance(fault, DatabaseBusy)
                raise

        await self._carrier.carry(attempt, lambda: busy and self._monotonic() < deadline)

    async def _prepare(self) -> None:
        """Create or check the schema, once."""
        if self._schema_version:
            return
        async with self._preparing:
            if not self._schema_version:
                self._schema_version = await ensure_schema(self._engine)

    async def _prepare_again(self) -> bool:
        """Migrate the database once more if it has gone back to before that; whether it had.

        One without any schema is left alone: somebody may be about to restore a backup into it.
        """
        version, _ = await versions_at(self._engine.query)
        if not 0 < version < self._schema_version:
            return False
        self._schema_version = 0
        await self._prepare()
        return True

    async def drained(self) -> None:
        """Wait until no write waits in the spool."""
        if self._agent_queue is not None:
            await self._agent_queue.drained()

    async def synced(self, progress: Progress = lambda done, total: None) -> None:
        """Wait until the replica holds all that was committed before now; at once where there is none."""
        if self._replica is not None:
            await self._replica.caught_up(progress, self._timeout)

    async def status(self) -> StoreStatus:
        """How the store stands."""
        facts: EngineFacts | None = None
        with suppress(DatabaseUnavailable):
            facts = await self._engine.facts()
        return StoreStatus(
            home=self.home,
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
        """Finish what is under way and let go of everything, cancelled or not. May be called twice."""
        if not self._closed:
            self._closed = True
            await to_the_end(asyncio.create_task(self._close(), name="vox-mesh-close"))

    async def _close(self) -> None:
        async with AsyncExitStack() as ending:  # in reverse, and each one whatever became of the others
            if self._slot is not None:
                ending.callback(self._slot.release)
            ending.push_async_callback(self._engine.close)
            if self._replica is not None:
                ending.push_async_callback(self._replica.close)
            if self._agent_queue is not None:
                ending.push_async_callback(self._agent_queue.close)
            ending.push_async_callback(self._combiner.close, _CLOSE_S)
            if self._agent_queue is not None:
                ending.push_async_callback(self._agent_queue.stop_replaying)
            if self._listening is not None:
                ending.push_async_callback(_ended, self._listening)
            self._changes.bump()  # those who wait find the store closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
