"""Fixtures: a node with a console, once for all tests of a file."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.nodes.served_console import ConsoleBrowser, ServedConsole, serving_console
from tests.support.nodes.shared_mesh import SharedMesh
from tools.homes import FILE
from vox_mesh.store import new_key


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServedConsole]:
    """A node in a file with a console."""
    async with serving_console(SharedMesh(FILE, tmp_path_factory.mktemp("mesh"), None, new_key())) as served:
        yield served


@pytest_asyncio.fixture(loop_scope="module")
async def browser(served: ServedConsole) -> AsyncIterator[ConsoleBrowser]:
    """A browser that has not signed in."""
    async with ConsoleBrowser.opened(served.url) as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="module")
async def alice(served: ServedConsole) -> AsyncIterator[ConsoleBrowser]:
    """The browser of a person who may do everything."""
    async with served.signed_in("alice") as browser:
        yield browser
