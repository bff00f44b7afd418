"""Fixtures: one browser and one fleet for all tests of this folder, and pages that are watched.

They end with the folder: an idle fleet with open pages takes a twentieth of a processor.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright, expect

from tests.support.console.pages import Pages
from tests.support.console.watched_page import PATIENCE_MS, WatchedPage
from tools.fleet.fleet import Fleet, running_fleet
from tools.install_browser import NoBrowser
from tools.install_browser import browser as browser_path

_FOLDER: Final = Path(__file__).parent

OpenPage = Callable[..., Awaitable[WatchedPage]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests of this folder on the event loop of the browser."""
    mark = pytest.mark.asyncio(loop_scope="session")
    for item in items:
        if item.path.parent == _FOLDER:
            item.add_marker(mark, append=False)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """The machine's browser, started once."""
    expect.set_options(timeout=PATIENCE_MS)
    try:
        path = browser_path()
    except NoBrowser as reason:
        pytest.skip(f"{reason}")
    async with async_playwright() as driver:
        # Without a sandbox, which root can't have: it shows only pages of the test's own nodes.
        started = await driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield started
        await started.close()


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """A running mesh with something of everything. Tests add what they change."""
    async with running_fleet(tmp_path_factory.mktemp("fleet")) as built:
        yield built


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def pages(browser: Browser, fleet: Fleet) -> AsyncIterator[Pages]:
    """The pages of the fleet's console."""
    opened = Pages(browser, fleet.node)
    yield opened
    await opened.close()


@pytest_asyncio.fixture(loop_scope="session")
async def open_page(pages: Pages) -> AsyncIterator[OpenPage]:
    """Open signed-in pages for this test alone; at the end, none of them may have done wrong."""
    yield pages.open
    await pages.check([])


@pytest_asyncio.fixture(loop_scope="session")
async def signed_in(pages: Pages) -> AsyncIterator[WatchedPage]:
    """The page of a person who may do everything. Other tests get it, too: no test may sign out here."""
    page = await pages.kept("alice")
    yield page
    await pages.check([page])


@pytest_asyncio.fixture(loop_scope="session")
async def reader(pages: Pages) -> AsyncIterator[WatchedPage]:
    """The page of a person who may only read; other tests get it, too."""
    page = await pages.kept("eve", read_only=True)
    yield page
    await pages.check([page])
