"""Listening for commits that come without an event: none is missed, and a failed look is not the end."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, nullcontext
from functools import partial, partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Final, Self

import pytest

from tests.support.store.leftovers import descriptors
from vox_mesh.errors import DatabaseFault, Unreachable
from vox_mesh.store.batch import Batch
from vox_mesh.store.engines.file import FileEngine, Turn, turn_path
from vox_mesh.store.replica.read_watermark import ReadWatermark
from vox_mesh.store.watch import file_events, listeners
from vox_mesh.store.watch.changes import Changes
from vox_mesh.store.watch.file_events import CommitEvents, NoSigns, Sign, WalAndBell
from vox_mesh.store.watch.listeners import Listener, ServerPoll, WalListener

OpenEvents = Callable[[Path, Path], CommitEvents]

_PATIENCE_S: Final = 10.0
_SILENCE_S: Final = 0.05

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


# --- file-system events ---------------------------------------------------------------------------


@contextmanager
def _signs(folder: Path) -> Iterator[tuple[WalAndBell, Path, Turn]]:
    """Signs of a log, the log, and what rings the bell."""
    turn = Turn(folder / "x.db.turn")
    with closing(turn), WalAndBell(folder / "x.db-wal", folder / "x.db.turn") as events:
        yield events, folder / "x.db-wal", turn


def _ring(turn: Turn) -> None:
    with turn:
        pass


@on_linux
async def test_it_tells_of_a_file_that_is_written_removed_and_made_again(tmp_path: Path) -> None:
    with _signs(tmp_path) as (events, wal, _):
        assert await events.wait(_SILENCE_S) is Sign.NONE
        for _ in range(2):
            wal.write_bytes(b"frames")
            assert await events.wait(_PATIENCE_S) is Sign.WRITTEN
            with wal.open("ab") as file:
                file.write(b"more")
            assert await events.wait(_PATIENCE_S) is Sign.WRITTEN
            wal.unlink()


@on_linux
async def test_it_tells_of_no_other_file(tmp_path: Path) -> None:
    with _signs(tmp_path) as (events, _, _):
        (tmp_path / "x.db-wal2").write_bytes(b"x")
        (tmp_path / "x.db").write_bytes(b"x")
        (tmp_path / "x.db").read_bytes()
        assert await events.wait(_SILENCE_S) is Sign.NONE


@on_linux
@pytest.mark.parametrize("missing", ["folder", "bell"])
async def test_what_is_not_there_cannot_be_listened_to(missing: str, tmp_path: Path) -> None:
    folder = tmp_path / "nowhere" if missing == "folder" else tmp_path
    before = descriptors()
    with pytest.raises(OSError, match="inotify_add_watch"):
        WalAndBell(folder / "x.db-wal", folder / "x.db.turn")
    assert descriptors() == before


@on_linux
async def test_a_bell_says_that_what_was_written_before_can_be_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(file_events, "MIN_RECHECK_S", 3_600.0)
    with _signs(tmp_path) as (events, wal, turn):
        wal.write_bytes(b"frames")
        waiting = asyncio.create_task(events.wait(_PATIENCE_S))
        await asyncio.sleep(_SILENCE_S)
        assert not waiting.done(), "the commit can't be seen yet"
        _ring(turn)
        assert await waiting is Sign.RUNG


@on_linux
@pytest.mark.parametrize("is_long", [False, True])
async def test_signs_are_left_to_the_end_of_a_commit_of_its_own_that_is_short(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_long: bool
) -> None:
    monkeypatch.setattr(file_events, "MAX_HOLD_S", 0.0 if is_long else 3_600.0)
    with _signs(tmp_path) as (events, _, turn):
        waiting = asyncio.create_task(events.wait(_PATIENCE_S))
        events.hold()
        await asyncio.sleep(0)
        _ring(turn)
        await asyncio.wait([waiting], timeout=_PATIENCE_S if is_long else _SILENCE_S)
        assert waiting.done() is is_long
        events.release()
        assert await waiting is Sign.RUNG


@on_linux
async def test_signs_before_a_look_are_forgotten_and_the_next_look_comes_soon(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with _signs(tmp_path) as (events, wal, turn):
        for recheck_s in (0.0, 3_600.0):
            monkeypatch.setattr(file_events, "RUNG_RECHECK_S", recheck_s)
            waiting = asyncio.create_task(events.wait(_PATIENCE_S))
            events.hold()
            await asyncio.sleep(0)
            wal.write_bytes(b"frames")
            _ring(turn)
            events.forget()
            events.release()
            if recheck_s:
                await asyncio.wait([waiting], timeout=_SILENCE_S)
                assert not waiting.done()
                _ring(turn)
            assert await waiting is (Sign.RUNG if recheck_s else Sign.NONE)


@on_linux
async def test_of_many_writes_to_the_log_only_the_first_wakes_the_loop(tmp_path: Path) -> None:
    with _signs(tmp_path) as (events, wal, turn):
        heard, hear_log = 0, events._hear_log

        def count() -> None:
            nonlocal heard
            heard += 1
            hear_log()

        events._log._on_events = count
        waiting = asyncio.create_task(events.wait(_PATIENCE_S))
        for _ in range(20):
            wal.write_bytes(b"frames")
            await asyncio.sleep(0)
        _ring(turn)
        await waiting
        assert heard == 1


# --- the file home --------------------------------------------------------------------------------


@asynccontextmanager
async def _listening(listener: Listener, changes: Changes) -> AsyncIterator[None]:
    task = asyncio.create_task(listener.listen())
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await changes.after(0)  # it has begun
            yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _no_inotify(*_: Path) -> CommitEvents:
    raise OSError("no more of it to be had")


async def _hear_all(path: Path, write: Callable[[str], Awaitable[object]], events: OpenEvents) -> None:
    """Listen while 20 tables are made, each when the commit before was heard."""
    changes, engine = Changes(), await FileEngine.open(path)
    listener = WalListener(Path(f"{path}-wal"), turn_path(path), engine.data_version, changes, events)
    async with _listening(listener, changes):
        for n in range(20):
            seen = changes.count
            await write(f"CREATE TABLE t_{n} (a)")
            await changes.after(seen)
    await engine.close()


@pytest.mark.parametrize("events", [WalAndBell, NoSigns, _no_inotify])
async def test_every_commit_of_another_is_heard(events: OpenEvents, tmp_path: Path) -> None:
    writing_engine = await FileEngine.open(tmp_path / "x.db")
    await _hear_all(tmp_path / "x.db", partial(_run, writing_engine), events)
    await writing_engine.close()


async def _run(engine: FileEngine, sql: str) -> None:
    batch = Batch()
    batch.add(sql)
    await engine.run(batch.seal())


@on_linux
async def test_a_commit_is_heard_by_the_bell_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By nothing else within the time that the test has."""
    monkeypatch.setattr(file_events, "MIN_RECHECK_S", 3_600.0)
    monkeypatch.setattr(listeners, "_RECHECKS_S", {Sign.RUNG: 3_600.0})
    monkeypatch.setattr(listeners, "_POLL_INTERVAL_S", 3_600.0)
    writing_engine = await FileEngine.open(tmp_path / "x.db")
    await _hear_all(tmp_path / "x.db", partial(_run, writing_engine), WalAndBell)
    await writing_engine.close()


@on_linux
@pytest.mark.parametrize("takes_turns", [False, True])
async def test_a_program_without_a_bell_is_heard_by_what_it_writes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, takes_turns: bool
) -> None:
    """The processes of earlier versions take turns; other programs, such as the sqlite3 shell, do not."""
    monkeypatch.setattr(listeners, "_POLL_INTERVAL_S", 3_600.0)
    path = tmp_path / "x.db"
    await (await FileEngine.open(path)).close()
    monkeypatch.setattr(Turn, "_ring", lambda _: None)
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as connection,
        closing(Turn(turn_path(path))) as turn,
    ):

        async def write(sql: str) -> None:
            with turn if takes_turns else nullcontext():
                connection.execute(sql)

        await _hear_all(path, write, WalAndBell)


@on_linux
async def test_a_commit_of_another_is_heard_although_one_of_its_own_has_failed(tmp_path: Path) -> None:
    path, changes = tmp_path / "x.db", Changes()
    engine, other = await FileEngine.open(path), await FileEngine.open(path)
    listener = WalListener(Path(f"{path}-wal"), turn_path(path), engine.data_version, changes)

    async def fail() -> None:
        await _run(other, "CREATE TABLE t (a)")
        raise DatabaseFault("disk I/O error")

    async with _listening(listener, changes):
        seen = changes.count
        with pytest.raises(DatabaseFault):
            await listener.own_commit(fail())
        await changes.after(seen)
    await engine.close()
    await other.close()


async def test_a_commit_of_its_own_process_is_not_heard_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(listeners, "_POLL_INTERVAL_S", _SILENCE_S)
    path, changes = tmp_path / "x.db", Changes()
    engine = await FileEngine.open(path)
    looks, look_again = 0, asyncio.Event()

    async def data_version() -> int:
        nonlocal looks
        looks += 1
        if looks == after_own + 2:
            look_again.set()
        return await engine.data_version()

    after_own = sys.maxsize
    listener = WalListener(Path(f"{path}-wal"), turn_path(path), data_version, changes)
    async with _listening(listener, changes):
        await listener.own_commit(_run(engine, "CREATE TABLE t (a)"))
        seen, after_own = changes.count, looks
        await look_again.wait()
        assert changes.count == seen
    await engine.close()


@asynccontextmanager
async def _in_burst(path: Path, now: Callable[[], float]) -> AsyncIterator[tuple[FileEngine, Changes]]:
    """Listen in the middle of a burst of own commits that goes on until `now` is later."""
    changes, engine = Changes(), await FileEngine.open(path)
    listener = WalListener(Path(f"{path}-wal"), turn_path(path), engine.data_version, changes, monotonic=now)
    async with _listening(listener, changes):
        for n in range(20):
            await listener.own_commit(_run(engine, f"CREATE TABLE own_{n} (a)"))
        yield engine, changes
    await engine.close()


@on_linux
async def test_what_a_burst_of_own_commits_writes_does_not_wake_the_loop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(file_events, "MAX_HOLD_S", 3_600.0)
    heard, hear_bell, hear_log = 0, WalAndBell._hear_bell, WalAndBell._hear_log

    def count(hear: Callable[[WalAndBell], None], events: WalAndBell) -> None:
        nonlocal heard
        heard += 1
        hear(events)

    monkeypatch.setattr(WalAndBell, "_hear_bell", partialmethod(partial(count, hear_bell)))
    monkeypatch.setattr(WalAndBell, "_hear_log", partialmethod(partial(count, hear_log)))
    async with _in_burst(tmp_path / "x.db", lambda: 0.0) as (engine, _):
        before = heard
        for n in range(5):
            await _run(engine, f"CREATE TABLE t_{n} (a)")
            await asyncio.sleep(0.001)
        assert heard == before


@on_linux
async def test_own_commits_of_a_burst_are_not_heard_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(file_events, "MAX_HOLD_S", 3_600.0)  # a look during a commit may report that
    monkeypatch.setattr(listeners, "_POLL_INTERVAL_S", 3_600.0)
    looked, data_version = asyncio.Event(), FileEngine.data_version

    async def look(engine: FileEngine) -> int:
        looked.set()
        return await data_version(engine)

    monkeypatch.setattr(FileEngine, "data_version", look)
    now = 0.0
    async with _in_burst(tmp_path / "x.db", lambda: now) as (_, changes):
        looked.clear()
        now += 1.0
        await looked.wait()
        assert changes.count == 1, "only the beginning of the listening counts"


@on_linux
@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_commit_of_another_is_heard_during_a_burst_of_own_ones_and_after_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, goes_on: bool
) -> None:
    """During the burst by a look now and then, after it by the bell."""
    monkeypatch.setattr(file_events, "MAX_HOLD_S", 0.001 if goes_on else 3_600.0)
    monkeypatch.setattr(listeners, "_POLL_INTERVAL_S", 3_600.0)
    monkeypatch.setattr(listeners, "_RECHECKS_S", {})
    now = 0.0
    other = await FileEngine.open(tmp_path / "x.db")
    async with _in_burst(tmp_path / "x.db", lambda: now) as (_, changes), asyncio.timeout(_PATIENCE_S):
        now += 0.0 if goes_on else 1.0
        await asyncio.sleep(_SILENCE_S)  # the own commits have been seen
        for n in range(3):
            seen = changes.count
            await _run(other, f"CREATE TABLE t_{n} (a)")
            await changes.after(seen)
    await other.close()


@on_linux
async def test_who_answers_the_commits_of_another_goes_on_listening_to_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(WalAndBell, "mute", lambda _: pytest.fail("the next commit would be heard late"))
    path, changes = tmp_path / "x.db", Changes()
    engine, other = await FileEngine.open(path), await FileEngine.open(path)
    listener = WalListener(
        Path(f"{path}-wal"), turn_path(path), engine.data_version, changes, monotonic=lambda: 0.0
    )
    async with _listening(listener, changes):
        for n in range(20):
            seen = changes.count
            await _run(other, f"CREATE TABLE t_{n} (a)")
            await changes.after(seen)
            await listener.own_commit(_run(engine, f"CREATE TABLE own_{n} (a)"))
    await engine.close()
    await other.close()


class Disk:
    """A log that is written to long before its commit can be seen: after this many looks."""

    def __init__(self) -> None:
        self.looks = 0
        self.now = 0.0
        self.visible_after = sys.maxsize
        self.is_touched = False
        self.pauses: list[float] = []
        self.fails = False

    async def data_version(self) -> int:
        """What a look shows."""
        self.looks += 1
        if self.fails:
            self.fails = False
            raise DatabaseFault("disk I/O error")
        return int(self.looks > self.visible_after)

    async def wait(self, timeout: float) -> Sign:
        """Time passes at once here."""
        await asyncio.sleep(0)
        self.pauses.append(timeout)
        was_touched, self.is_touched = self.is_touched, False
        return Sign.WRITTEN if was_touched else Sign.NONE

    def hold(self) -> None:
        """There are no commits of its own."""

    mute = forget = release = hold

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _listener(disk: Disk, changes: Changes) -> WalListener:
    wal, bell = Path("x.db-wal"), Path("x.db.turn")
    return WalListener(wal, bell, disk.data_version, changes, lambda *_: disk, lambda: disk.now)


async def test_a_commit_that_the_disk_takes_long_for_is_looked_for_until_it_shows() -> None:
    disk, changes = Disk(), Changes()
    async with _listening(_listener(disk, changes), changes):
        seen = changes.count
        disk.pauses.clear()
        disk.is_touched, disk.visible_after = True, disk.looks + 15
        await changes.after(seen)
    after_the_sign = disk.pauses[1:15]
    assert after_the_sign[0] < 0.01
    assert after_the_sign == sorted(after_the_sign)
    assert max(disk.pauses) <= 1.0, "it looks at least once a second, sign or no sign"


class Played(Disk):
    """A log with a commit before a look, or without, as it was written down; then there are no more looks."""

    def __init__(self, play: str) -> None:
        super().__init__()
        self._play = iter(play)
        self._commits = 0
        self.is_over = asyncio.Event()

    async def data_version(self) -> int:
        """How many commits there were."""
        return self._commits

    async def wait(self, timeout: float) -> Sign:
        """Whether the next look is one with a commit."""
        note = next(self._play, None)
        if note is None:
            self.is_over.set()
            await asyncio.Event().wait()
        if note == "c":
            self._commits += 1
            return Sign.RUNG
        self.now += timeout
        return Sign.NONE


async def test_the_longer_a_burst_goes_on_the_more_of_it_is_seen_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played, changes, rests = Played("cccccc..cc."), Changes(), list[float]()

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr(listeners, "asyncio", SimpleNamespace(sleep=rest))
    async with _listening(_listener(played, changes), changes):
        await played.is_over.wait()
    first, second = rests[:5], rests[5:]
    assert first[0] < first[1] < first[2], "the longer it goes on, the more come together"
    assert first[0] <= 0.001, "two are reported at once, and the next is looked for soon"
    assert max(first) <= 0.01
    assert second == first[:1], "after a pause it is as at the beginning"


async def test_a_look_that_fails_is_reported_and_does_not_end_the_listening() -> None:
    disk, changes = Disk(), Changes()
    async with _listening(_listener(disk, changes), changes):
        seen = changes.count
        disk.fails = True
        seen = await changes.after(seen)
        disk.visible_after = disk.looks + 5
        await changes.after(seen)


# --- a server that pushes nothing -----------------------------------------------------------------


class Primary:
    """Answers as of a frame, or not at all."""

    def __init__(self, floor: ReadWatermark) -> None:
        self.floor = floor
        self.frame: int | None = 7
        self.is_away = self.is_pushed = False
        self.asked = Changes()

    async def ask(self) -> None:
        """One cheap question."""
        self.asked.bump()
        if self.is_away:
            raise Unreachable("gone")
        self.floor.note(self.frame, 1, False)


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second is short here."""
    monkeypatch.setattr(listeners, "_POLL_INTERVAL_S", 0.005)


@pytest.mark.usefixtures("quick_looks")
async def test_the_pulse_tells_of_new_frames_of_loss_and_of_return() -> None:
    changes, primary = Changes(), Primary(ReadWatermark(lambda: 0.0))
    pulse = ServerPoll(primary.ask, lambda: primary.is_pushed, primary.floor, changes)
    async with _listening(pulse, changes):
        quiet = changes.count
        waiting = asyncio.create_task(changes.after(quiet))
        for _ in range(3):
            await primary.asked.after(primary.asked.count)
        assert changes.count == quiet, "nothing was new"
        primary.frame = 8
        seen = await waiting
        primary.is_away = True
        seen = await changes.after(seen)
        waiting = asyncio.create_task(changes.after(seen))
        for _ in range(3):
            await primary.asked.after(primary.asked.count)
        assert changes.count == seen, "that it is still away is nothing new"
        primary.is_away = False
        seen = await waiting
        primary.frame = None  # a server that does not say: there may always be something new
        for _ in range(3):
            seen = await changes.after(seen)


@pytest.mark.usefixtures("quick_looks")
@pytest.mark.parametrize("reason", ["pushed", "no one waits"])
async def test_the_pulse_rests_when_it_is_not_needed(reason: str) -> None:
    changes, primary = Changes(), Primary(ReadWatermark(lambda: 0.0))
    pulse = ServerPoll(primary.ask, lambda: primary.is_pushed, primary.floor, changes)
    async with _listening(pulse, changes):
        waiting = asyncio.create_task(changes.after(changes.count))
        await primary.asked.after(primary.asked.count)
        if reason == "pushed":
            primary.is_pushed = True
        else:
            waiting.cancel()
        await asyncio.sleep(_SILENCE_S / 5)  # one question may be under way
        asked = primary.asked.count
        await asyncio.sleep(_SILENCE_S)  # in which there would be ten
        assert primary.asked.count == asked
        primary.frame, primary.is_pushed = 8, False
        await changes.after(changes.count)  # and what came meanwhile is found
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
