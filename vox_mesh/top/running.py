"""Running the full-screen view: until it is ended by a key, a signal, or the end of its terminal."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from vox_mesh.cli.support.early_signals import ENDING
from vox_mesh.cli.support.exit_codes import KILLED, ExitCode
from vox_mesh.settings import Settings
from vox_mesh.top.app import Told, TopApp
from vox_mesh.top.feed import Feed

_LOOK_S: Final = 0.25
_INPUT: Final = 0
_OUTPUTS: Final = (1, 2)


async def full_screen(settings: Settings, interval: float | None) -> int:
    """Show the view; its exit code: 128 and its number, if a signal ended it. A bug is raised."""
    feed = Feed(settings, interval)
    app = TopApp(settings, feed)
    stopped_by: list[int] = []

    def stop(number: int) -> None:
        stopped_by.append(number)
        app.exit()

    with _signals(stop), _logs_to(app):
        async with fed(app, feed):
            watching = asyncio.create_task(_hang_up(lambda: stop(signal.SIGHUP)), name="vox-mesh-terminal")
            try:
                await app.run_async(mouse=False)
            finally:
                watching.cancel()
    if not os.isatty(_INPUT) or _has_ended(_INPUT):
        _say_no_more()
    if stopped_by:
        return KILLED + stopped_by[0]
    if app.bug is not None:
        raise app.bug
    return app.return_code or ExitCode.DONE


@asynccontextmanager
async def fed(app: TopApp, feed: Feed) -> AsyncIterator[None]:
    """Have the feed tell the app what it sees. If it can't go on, the app ends, and the reason is raised."""
    feeding = asyncio.create_task(feed.run(app.see, app.lose_sight), name="vox-mesh-feed")
    feeding.add_done_callback(lambda task: None if task.cancelled() else app.exit())
    try:
        yield
    finally:
        feeding.cancel()
        (ended,) = await asyncio.gather(feeding, return_exceptions=True)
    if isinstance(ended, Exception):
        raise ended


@contextmanager
def _signals(stop: Callable[[int], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    heard = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    for number in heard:
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        for number in heard:
            loop.remove_signal_handler(number)


@contextmanager
def _logs_to(app: TopApp) -> Iterator[None]:
    """While the screen is drawn, nobody else may write to it."""
    root = logging.getLogger()
    before, told = root.handlers[:], Told(app.tell)
    root.handlers[:] = [told]
    try:
        yield
    finally:
        root.handlers[:] = before


async def _hang_up(stop: Callable[[], None]) -> None:
    """Wait for the end of the terminal: a signal says so only to those whose own terminal it is."""
    while os.isatty(_INPUT) and not _has_ended(_INPUT):  # noqa: ASYNC110 -- nobody sends an event
        await asyncio.sleep(_LOOK_S)
    stop()


def _say_no_more() -> None:
    """What is still to be written would fail where no terminal is left, and change the exit code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in _OUTPUTS:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _has_ended(descriptor: int) -> bool:
    polling = select.poll()
    polling.register(descriptor, select.POLLHUP)
    return any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in polling.poll(0))
