"""A world: a database, a few players and what befalls them, from the first step to what is left."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from proof import losses, tables
from proof.checkers.lives import RECOVERY_S
from proof.checkers.locks import SETTLED
from proof.history import Event, Recorder, Step
from proof.monitor import Monitor
from proof.moves import INSTALL
from proof.outside import MemoryOutside
from proof.reading import read_finals
from proof.scene import Workload
from proof.simulate.faults import Clock, Fate, Fault, Kind
from proof.simulate.loop import House, new_loop
from proof.simulate.network import FAIR, Database, Weather
from proof.simulate.process import EPOCH_MS, REQUEST_S, Cast, Life
from proof.simulate.relay import Counter
from proof.workloads.consumers import CONSUMERS
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.nodes.clock import MAX_STEP_MS
from vox_mesh.store.engines.memory import SharedMemory
from vox_mesh.store.schema.schema import ensure_schema
from vox_mesh.store.script import Statement
from vox_mesh.store.write.breaker import RESET_TIMEOUT_S

PLAYERS: Final = ("ada", "bob", "cleo", "dan", "eve")
_AFTER_S: Final = 10.0
"""So long after a time to live, at the latest, everybody can do something again when all is well."""

_CALM_S: Final = 8.0
"""How long all goes on then, at the least."""

_LAST_S: Final = 240.0
"""So long the last deeds may take, and then the draining."""

_LOOK_S: Final = 0.25
_MONITOR_S: Final = 5.0
_FUSE_S: Final = 10.0
"""Whoever is to be killed in the middle of something, and has nothing to do for so long, is killed idle."""

_FORGOTTEN_S: Final = 40.0
"""After this time every lease from before a step is over, even if no node is left that knows of the step."""

_VISIBLE_MS: Final = MAX_STEP_MS + 10_000
"""A heartbeat that is so far ahead of the clock still shows a step when a process has come up."""

_RECORDED: Final = """
SELECT coalesce((SELECT correction_ms FROM database_clock), 0) AS correction_ms, EXISTS (
    SELECT 1 FROM clock_witnesses
    WHERE low_ms IS NOT NULL AND epoch = coalesce((SELECT epoch FROM database_clock), 0)
) AS is_recorded,
    (SELECT coalesce(max(last_seen_ms), 0) FROM mesh_heartbeats WHERE left_ms IS NULL) AS newest_ms"""


def prepared() -> bytes:
    """A database in which nothing has happened yet."""
    memory, loop = SharedMemory(lambda: EPOCH_MS), new_loop(random.random)
    loop.run_until_complete(ensure_schema(memory))
    loop.close()
    for sql in (*INSTALL, *tables.CREATE):
        memory.query_now(Statement(sql))
    return memory.image()


@dataclass
class Player:
    """Somebody who lives more than once."""

    name: str
    clock: Clock
    lives: int = 0
    life: Life | None = None
    is_away: bool = False
    lines: list[Weather] = field(default_factory=list)
    """What the line to the database suffers from; the last counts."""
    relays: list[Weather] = field(default_factory=list)

    def weathered(self) -> None:
        """Have its lines be as they should."""
        if self.life is not None:
            self.life.line.way.weather = self.lines[-1] if self.lines else FAIR
            self.life.way.weather = self.relays[-1] if self.relays else FAIR


class World:
    """One play of one seed."""

    def __init__(
        self,
        seed: int,
        fate: Fate,
        workloads: Sequence[Workload],
        image: bytes,
        keys: Mapping[str, SigningKey],
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        self.events: Final[list[Event]] = []
        self._successful: set[str] = set()
        """Who has done something lately."""
        self._is_over = False
        self._seed = seed
        self._fate = fate
        self.loop = loop = new_loop(random.Random(f"steps {seed}").random, watch)
        loop.failed = self._unexpected
        self._ahead_ms = 0
        """By how much the clock of the database is ahead."""
        self._hidden_until = 0.0
        """Until when a process that starts may not be able to know that it was set."""
        self._is_unsettled = False
        self._is_visible = False
        """Whether heartbeats show that it was set back."""
        self._rolling_back = asyncio.Lock()
        memory = SharedMemory(lambda: EPOCH_MS + self._ahead_ms + round(loop.now * 1_000), image)
        memory.keys |= keys
        self._database = Database(loop, memory, random.Random(f"lines {seed}"))
        names = PLAYERS[: fate.players]
        self._players = [Player(name, clock) for name, clock in zip(names, fate.clocks, strict=True)]
        self._cast = Cast(
            *(loop, self._database, MemoryOutside(), workloads, names, fate.pace),
            *(asyncio.Event(), asyncio.Event(), self._counter_of, fate.has_breaker),
        )
        self._recorder = self._recorder_of("stage", 1)

    def play(self) -> None:
        """Play it; the history is in `events`."""
        try:
            self.loop.run_until_complete(self._play())
        finally:
            self._is_over = True
            self.loop.close()
            self._database.memory.drop_now()

    def crashed(self, where: str, error: BaseException) -> None:
        """Whoever runs just now has said so."""
        self._unexpected(self.loop.running, error, where)

    def _unexpected(self, house: House, error: BaseException, where: str = "a task") -> None:
        """Something failed in a way that nothing that befalls a node accounts for."""
        self._recorder.note("unexpected", player=house.name, where=where, error=repr(error))

    def _recorder_of(self, who: str, life: int) -> Recorder:
        return Recorder(who, life, self.loop.passing, self._write)

    def _write(self, event: Event) -> None:
        if not self._is_over:  # what is buried has nothing more to say
            self.events.append(event)
            if event.step is Step.OK:
                self._successful.add(event.who)

    def _counter_of(self, name: str) -> Counter | None:
        life = next((each.life for each in self._players if each.name == name), None)
        return None if life is None else life.counter

    # --- the play --------------------------------------------------------------------------------

    async def _play(self) -> None:
        keeping = asyncio.create_task(self._keep())
        every_s = _MONITOR_S * self._fate.slowness
        monitoring = asyncio.create_task(Monitor(self._ask, self._recorder).run(every_s))
        await self._befall()
        if self._fate.has_breaker:  # whoever has just opened its circuit does not know yet that all is well
            await asyncio.sleep(RESET_TIMEOUT_S + REQUEST_S)
        self._recorder.note("healed")
        await self._recover()
        self._recorder.note("over")
        self._cast.over.set()
        await self._all(lambda life: life.has_acted.is_set(), "the last deeds")
        self._cast.draining.set()
        await self._all(lambda life: life.is_drained.is_set(), "the draining")
        keeping.cancel()
        monitoring.cancel()
        for player in self._players:
            if player.life is not None:
                self.loop.raze(player.life.house)
                self._recorder.note("drained", player=player.name)
        await read_finals(self._ask, self._recorder)

    async def _recover(self) -> None:
        """Let all go on, until everybody has done something again, or should have."""
        healed, calm_s = self.loop.now, _CALM_S * self._fate.slowness
        if CONSUMERS in self._cast.workloads:
            calm_s += RECOVERY_S  # or nothing could be late
        self._successful.clear()
        while self.loop.now < healed + self._fate.pace.ttl_s + _AFTER_S:
            await asyncio.sleep(_LOOK_S)
            if self.loop.now > healed + calm_s and len(self._successful) == len(self._players):
                return

    async def _all(self, stands: Callable[[Life], bool], what: str) -> None:
        """Wait until all lives stand so."""
        deadline = self.loop.now + _LAST_S * self._fate.slowness
        while late := [each for each in self._players if each.life is None or not stands(each.life)]:
            if self.loop.now > deadline:
                for player in late:
                    self._recorder.note("unexpected", player=player.name, where=what, error="late")
                return
            await asyncio.sleep(_LOOK_S)

    async def _ask(self, sql: str) -> list[dict[str, Any]]:
        rows = self._database.memory.query_now(Statement(sql))
        return [dict(zip(rows.columns, row, strict=True)) for row in rows]

    # --- lives -----------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Have all players live, again and again."""
        while True:
            self._look_at_clock()
            for player in self._players if self.loop.now >= self._hidden_until or self._is_visible else ():
                if player.life is None and not player.is_away:
                    self._begin(player)
            await asyncio.sleep(_LOOK_S)

    def _begin(self, player: Player) -> None:
        player.lives += 1
        self._note("life.began", player, life=player.lives, node_id=player.name)
        recorder = self._recorder_of(player.name, player.lives)
        seed = f"{player.name} {player.lives} {self._seed}"
        player.life = life = Life(self._cast, recorder, player.clock, seed)
        life.ended.add_done_callback(lambda _: self._ended(player, life))
        player.weathered()

    def _ended(self, player: Player, life: Life) -> None:
        if player.life is life:
            player.life = None
        how, error = life.ended.result()
        self._note("life.ended", player, life=life.recorder.life, how=how, error=error)

    def _note(self, what: str, player: Player, **data: Any) -> None:
        self._recorder.note(what, player=player.name, **data)

    # --- what befalls them -----------------------------------------------------------------------

    async def _befall(self) -> None:
        """Have everything happen that is to happen, and then have all be well again."""
        faults = [
            asyncio.create_task(self._fault(number, each)) for number, each in enumerate(self._fate.faults)
        ]
        for at, is_storm in self._fate.storms:
            await self._until(at)
            self._recorder.note("storm.began" if is_storm else "calm.began")
        await self._until(self._fate.seconds)
        for task in faults:
            task.cancel()
        for end in await asyncio.gather(*faults, return_exceptions=True):
            if isinstance(end, Exception):
                raise end

    async def _until(self, at: float) -> None:
        await asyncio.sleep(at - self.loop.now)

    async def _fault(self, number: int, fault: Fault) -> None:
        await self._until(fault.at)
        about = {
            "kind": fault.kind,
            "id": number,
            "player": PLAYERS[fault.player] if fault.player >= 0 else None,
            "repeats": fault.weather is not None and fault.weather.can_repeat(REQUEST_S),
        }
        self._recorder.note("fault.began", **about)
        try:
            await self._suffer(fault)
        finally:
            self._recorder.note("fault.ended", **about)

    async def _suffer(self, fault: Fault) -> None:
        player = self._players[fault.player]
        match fault.kind:
            case Kind.DATABASE:
                await self._stand_still(fault)
            case Kind.NETWORK | Kind.LINE | Kind.RELAY | Kind.SLOW | Kind.UNREACHABLE:
                await self._weather(fault)
            case Kind.ROLLBACK | Kind.UNSEEN_ROLLBACK:
                await self._roll_back(fault)
            case Kind.HELD:
                await self._hold(fault)
            case Kind.DATABASE_CLOCK:
                await self._step_database_clock(fault)
            case _ if player.life is None or player.life.house.is_paused:
                pass
            case Kind.KILL:
                await self._kill(player, player.life, fault)
            case Kind.LEAVE:
                await self._leave(player, player.life, fault)
            case Kind.PAUSE:
                await self._pause(player, player.life, fault)
            case Kind.REPLACE:
                await self._replace(player, player.life, fault)
            case Kind.CLOCK:
                await self._turn(player.life, fault)

    async def _stand_still(self, fault: Fault) -> None:
        self.loop.pause(self._database.house)
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            self.loop.resume(self._database.house)

    async def _roll_back(self, fault: Fault) -> None:
        async with self._rolling_back:
            image, copied = self._database.memory.image(), self.loop.passing()
            await asyncio.sleep(fault.seconds)
            if fault.kind is Kind.UNSEEN_ROLLBACK:
                self._remove_witnesses()
            self._database.put_back(image)
            now = self.loop.passing()
            self._recorder.note(losses.NOTE, kept_until=copied, lost_at=now, back_at=now)

    def _remove_witnesses(self) -> None:
        """Kill every node and delete what it remembers of the database."""
        for player in self._players:
            if player.life is not None:
                self._raze(player.life)
        self._database.memory.memories.clear()

    async def _hold(self, fault: Fault) -> None:
        self._database.hold()
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            self._database.let_go()

    async def _step_database_clock(self, fault: Fault) -> None:
        """Set it, and set it right again after a while.

        A process that has not heard the time yet could not know, so there is none when the clock is set.
        """
        for _ in iter(self._is_anybody_new, False):
            await asyncio.sleep(_LOOK_S)
        self._set_database_clock(fault.skew_ms)
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            self._set_database_clock(-fault.skew_ms)

    def _is_anybody_new(self) -> bool:
        return any(each.life is not None and not each.life.has_heard for each in self._players)

    def _set_database_clock(self, by_ms: int) -> None:
        """Set the clock. A process that starts goes by it, unless heartbeats or a record show the step."""
        self._ahead_ms += by_ms
        self._is_unsettled, self._is_visible = True, False
        self._hidden_until = self.loop.now + _FORGOTTEN_S
        self._recorder.note("database.clock", ahead_ms=self._ahead_ms)

    def _look_at_clock(self) -> None:
        """See whether the last step can be known, and whether the time of the mesh is right again."""
        if not self._is_unsettled:
            return
        row = self._database.memory.query_now(Statement(_RECORDED))[0]
        is_settled = abs(self._ahead_ms + row["correction_ms"]) <= MAX_STEP_MS
        if row["is_recorded"] or is_settled:
            self._hidden_until = 0.0
        now_ms = EPOCH_MS + self._ahead_ms + row["correction_ms"] + round(self.loop.now * 1_000)
        self._is_visible = row["newest_ms"] > now_ms + _VISIBLE_MS
        if is_settled:
            self._is_unsettled = False
            self._recorder.note(SETTLED)

    async def _weather(self, fault: Fault) -> None:
        assert fault.weather is not None
        struck = self._players if fault.player < 0 else [self._players[fault.player]]
        lists = [each.relays if fault.kind is Kind.RELAY else each.lines for each in struck]
        for suffered in lists:
            suffered.append(fault.weather)
        self._weathered()
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            for suffered in lists:
                suffered.remove(fault.weather)
            self._weathered()

    def _weathered(self) -> None:
        for player in self._players:
            player.weathered()

    async def _kill(self, player: Player, life: Life, fault: Fault) -> None:
        player.is_away = True
        try:
            life.house.fuse = fault.fuse, lambda: self._raze(life)
            await asyncio.wait((life.ended,), timeout=_FUSE_S * self._fate.slowness)
            self._raze(life)
            await asyncio.sleep(fault.seconds)
        finally:
            life.house.fuse = None
            player.is_away = False

    def _raze(self, life: Life) -> None:
        if not life.ended.done():
            self.loop.raze(life.house)
            life.ended.set_result(("killed", None))

    async def _leave(self, player: Player, life: Life, fault: Fault) -> None:
        player.is_away = True
        try:
            life.is_leaving.set()
            await asyncio.wait((life.ended,))
            await asyncio.sleep(fault.seconds)
        finally:
            player.is_away = False

    async def _pause(self, player: Player, life: Life, fault: Fault) -> None:
        self.loop.pause(life.house)
        self._note("paused", player)
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            self.loop.resume(life.house)
            self._note("resumed", player)

    async def _replace(self, player: Player, life: Life, fault: Fault) -> None:
        self.loop.pause(life.house)
        self._note("paused", player)
        try:
            await asyncio.sleep(fault.seconds / 4)
            player.life = None
            await asyncio.sleep(fault.seconds)
        finally:
            self.loop.resume(life.house)
            self._note("resumed", player)

    async def _turn(self, life: Life, fault: Fault) -> None:
        life.skew_ms += fault.skew_ms
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            life.skew_ms -= fault.skew_ms
