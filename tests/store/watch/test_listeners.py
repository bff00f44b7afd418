"""Listening for commits that come without an event: none is missed, and a failed look is not the end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Final, Self

import pytest

from tests.support.store.leftovers import descriptors
from vox_mesh.errors import DatabaseFault, Unreachable
from vox_mesh.store.batch import Batch
from vox_mesh.store.engines.file import FileEngine
from vox_mesh.store.replica.read_watermark import ReadWatermark
from vox_mesh.store.watch import listeners
from vox_mesh.store.watch.changes import Changes
from vox_mesh.store.watch.listeners import FileEvents, Inotify, Listener, NoEvents, ServerPoll, WalListener

_PATIENCE_S: Final = 10.0
_SILENCE_S: Final = 0.05

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


# --- file-system events ---------------------------------------------------------------------------


@on_linux
async def test_it_tells_of_a_file_that_is_written_removed_and_made_again(tmp_path: Path) -> None:
    wal = tmp_path / "x.db-wal"
    with Inotify(wal) as events:
        assert not await events.wait_for_event(_SILENCE_S)
        for _ in range(2):
            wal.write_bytes(b"frames")
            assert await events.wait_for_event(_PATIENCE_S)
            with wal.open("ab") as file:
                file.write(b"more")
            assert await events.wait_for_event(_PATIENCE_S)
            wal.unlink()


@on_linux
async def test_it_tells_of_no_other_file(tmp_path: Path) -> None:
    with Inotify(tmp_path / "x.db-wal") as events:
        (tmp_path / "x.db-wal2").write_bytes(b"x")
        (tmp_path / "x.db").write_bytes(b"x")
        assert not await events.wait_for_event(_SILENCE_S)


@on_linux
async def test_a_folder_that_is_not_there_cannot_be_listened_to(tmp_path: Path) -> None:
    before = descriptors()
    with pytest.raises(OSError, match="inotify_add_watch"):
        Inotify(tmp_path / "nowhere" / "x.db-wal")
    assert descriptors() == before


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


def _no_inotify(_: Path) -> FileEvents:
    raise OSError("no more of it to be had")


@pytest.mark.parametrize("events", [Inotify, NoEvents, _no_inotify])
async def test_every_commit_of_another_is_heard(events: Callable[[Path], FileEvents], tmp_path: Path) -> None:
    path, changes = tmp_path / "x.db", Changes()
    listening_engine, writing_engine = await FileEngine.open(path), await FileEngine.open(path)
    listener = WalListener(Path(f"{path}-wal"), listening_engine.data_version, changes, events)
    async with _listening(listener, changes):
        for n in range(20):
            seen = changes.count
            batch = Batch()
            batch.add(f"CREATE TABLE t_{n} (a)")
            await writing_engine.run(batch.seal())
            await changes.after(seen)
    await listening_engine.close()
    await writing_engine.close()


async def test_a_commit_of_its_own_process_is_not_heard_again(tmp_path: Path) -> None:
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
    listener = WalListener(Path(f"{path}-wal"), data_version, changes)
    async with _listening(listener, changes):
        batch = Batch()
        batch.add("CREATE TABLE t (a)")
        await listener.own_commit(engine.run(batch.seal()))
        seen, after_own = changes.count, looks
        await look_again.wait()
        assert changes.count == seen
    await engine.close()


class Disk:
    """A log that is written to long before its commit can be seen: after this many looks."""

    def __init__(self, _: Path | None = None) -> None:
        self.looks = 0
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

    async def wait_for_event(self, timeout: float) -> bool:
        """Time passes at once here."""
        await asyncio.sleep(0)
        self.pauses.append(timeout)
        was_touched, self.is_touched = self.is_touched, False
        return was_touched

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _listener(disk: Disk, changes: Changes) -> WalListener:
    return WalListener(Path("x.db-wal"), disk.data_version, changes, lambda _: disk)


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


@pytest.mark.parametrize("is_long", [False, True])
async def test_events_are_left_to_the_end_of_a_commit_of_its_own_that_is_short(
    monkeypatch: pytest.MonkeyPatch, *, is_long: bool
) -> None:
    monkeypatch.setattr(listeners, "_MAX_BURST_PAUSE_S", 0.0 if is_long else 3_600.0)
    disk, changes, commit = Disk(), Changes(), asyncio.get_running_loop().create_future()
    listener = _listener(disk, changes)
    async with _listening(listener, changes):
        committing = asyncio.create_task(listener.own_commit(commit))
        for _ in range(10):
            await asyncio.sleep(0)
        looks = disk.looks
        for _ in range(20):
            disk.is_touched = True
            await asyncio.sleep(0)
        assert (disk.looks > looks) is is_long
        commit.set_result("committed")
        assert await committing == "committed"
        looks = disk.looks
        for _ in range(20):
            await asyncio.sleep(0)
        assert disk.looks > looks


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

    async def wait_for_event(self, timeout: float) -> bool:
        """Whether the next look is one with a commit."""
        sign = next(self._play, None)
        is_commit = sign == "c"
        self._commits += is_commit
        if sign is None:
            self.is_over.set()
            await asyncio.Event().wait()
        return is_commit


async def test_the_longer_a_burst_goes_on_the_more_of_it_is_seen_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played, changes, rests = Played("cccccc..cc."), Changes(), list[float]()

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr(listeners, "asyncio", SimpleNamespace(sleep=rest, Event=asyncio.Event))
    async with _listening(_listener(played, changes), changes):
        await played.is_over.wait()
    first, second = rests[:6], rests[6:]
    assert first[0] <= 0.001, "one alone is reported at once, and the next is looked for soon"
    assert first[0] < first[1] < first[2], "the longer it goes on, the more come together"
    assert max(first) <= 0.01
    assert second == first[:2], "after a pause it is as at the beginning"


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
        self.floor.note(self.frame, 1)


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
