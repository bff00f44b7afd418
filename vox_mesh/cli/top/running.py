"""Running the full-screen view, until a key, a signal or the end of its terminal ends it."""

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
from vox_mesh.cli.top.app import MessageLineHandler, TopApp
from vox_mesh.cli.top.feed import Feed
from vox_mesh.settings import Settings

_POLL_S: Final = 0.25
_INPUT: Final = 0
_OUTPUTS: Final = (1, 2)


async def full_screen(settings: Settings, interval: float | None) -> int:
    """Show the view and return its exit code; after a signal, 128 and its number. Raises bugs."""
    feed = Feed(settings, interval)
    app = TopApp(settings, feed)
    stopped_by: list[int] = []

    def stop(number: int) -> None:
        stopped_by.append(number)
        app.exit()

    with _signals(stop), _logs_to(app):
        async with fed(app, feed):
            watching = asyncio.create_task(
                _wait_for_hang_up(lambda: stop(signal.SIGHUP)), name="vox-mesh-terminal"
            )
            try:
                await app.run_async(mouse=False)
            finally:
                watching.cancel()
    if not os.isatty(_INPUT) or _has_ended(_INPUT):
        _discard_output()
    if stopped_by:
        return KILLED + stopped_by[0]
    if app.bug is not None:
        raise app.bug
    return app.return_code or ExitCode.DONE


@asynccontextmanager
async def fed(app: TopApp, feed: Feed) -> AsyncIterator[None]:
    """Feed the app. If the feed fails, the app ends and the error is raised."""
    feeding = asyncio.create_task(feed.run(app.show_overview, app.show_fault), name="vox-mesh-feed")
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
    handled = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    for number in handled:
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


@contextmanager
def _logs_to(app: TopApp) -> Iterator[None]:
    """Send logs to the app: other output would disturb the screen."""
    root = logging.getLogger()
    before = root.handlers[:]
    root.handlers[:] = [MessageLineHandler(app.show_message)]
    try:
        yield
    finally:
        root.handlers[:] = before


async def _wait_for_hang_up(stop: Callable[[], None]) -> None:
    """Wait for the end of the terminal: SIGHUP reaches only processes that it controls."""
    while os.isatty(_INPUT) and not _has_ended(_INPUT):  # noqa: ASYNC110 -- there is no event
        await asyncio.sleep(_POLL_S)
    stop()


def _discard_output() -> None:
    """Discard the rest of the output: without a terminal it would fail and change the exit code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in _OUTPUTS:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _has_ended(descriptor: int) -> bool:
    polling = select.poll()
    polling.register(descriptor, select.POLLHUP)
    return any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in polling.poll(0))
