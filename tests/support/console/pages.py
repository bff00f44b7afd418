"""Signed-in pages of the fleet's console, kept from test to test: signing in costs more than most tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from playwright.async_api import Browser

from tests.support.console.watched_page import WIDE, WatchedPage
from tools.fleet.node_process import NodeProcess

_IS_AS_NEW: Final = """() => {
  document.activeElement?.blur();
  return document.querySelector("nav#screens") !== null
    && document.querySelector("dialog[open], [role=alert]") === null
    && document.documentElement.dataset.theme === undefined;
}"""


class Pages:
    """One page for each person, at most, and further ones that are used once."""

    def __init__(self, browser: Browser, node: NodeProcess) -> None:
        self._browser = browser
        self._node = node
        self._kept: dict[tuple[str, bool], WatchedPage] = {}
        self._opened: list[WatchedPage] = []

    async def kept(self, name: str, *, read_only: bool = False) -> WatchedPage:
        """Return the page of a person, as good as new. The next test gets it, too: it must stay signed in."""
        known = self._kept.get((name, read_only))
        if known is not None and not known.page.is_closed() and await known.page.evaluate(_IS_AS_NEW):
            known.forgive()
            await known.page.set_viewport_size(WIDE)
            return known
        if known is not None:
            await known.context.close()
        opened = await WatchedPage.open(self._browser, self._node.url)
        await opened.sign_in(self._node, name, read_only=read_only)
        self._kept[name, read_only] = opened
        return opened

    async def open(self, name: str, *, read_only: bool = False, **options: Any) -> WatchedPage:
        """Return a page that no other test gets."""
        opened = await WatchedPage.open(self._browser, self._node.url, **options)
        self._opened.append(opened)
        await opened.sign_in(self._node, name, read_only=read_only)
        return opened

    async def check(self, used: Iterable[WatchedPage]) -> None:
        """Close the pages that no other test gets, leave the screens of these, and fail if one did wrong."""
        kept = tuple(used)
        closing, self._opened = self._opened, []
        for each in closing:
            await each.context.close()
        for each in kept:
            await each.leave()
        for each in (*closing, *kept):
            each.check()

    async def close(self) -> None:
        """Close all pages."""
        for each in (*self._opened, *self._kept.values()):
            await each.context.close()
