"""A page of the console in a real browser, which reports everything that a page must not do."""

from __future__ import annotations

import asyncio
import re
from functools import cache
from http import HTTPStatus
from typing import Any, Final

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Error, Page, Request, ViewportSize

from tools.fleet.node_process import NodeProcess
from tools.install_npm import packages

PATIENCE_MS: Final = 30_000
NARROW: Final = ViewportSize(width=360, height=740)
WIDE: Final = ViewportSize(width=1280, height=800)

_STREAM: Final = "/v1/events"
"""What a page asks for once, and reads until it is closed."""

_REPORT_VIOLATIONS: Final = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`content security policy: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""
_IS_SIGNED_IN: Final = "() => document.querySelector('nav#screens') !== null"
_NOWHERE: Final = "/ui/no-such-screen"
"""A path whose screen asks the node for nothing."""
_FOLLOW: Final = """(url) => {
  history.pushState(null, "", url);
  dispatchEvent(new PopStateEvent("popstate"));
}"""
_RUN_AXE: Final = """async (rules) => {
  const only = rules ? { runOnly: { type: "rule", values: rules } } : {};
  const { violations } = await axe.run(document, { resultTypes: ["violations"], ...only });
  const examples = (nodes) => nodes.slice(0, 3).map((node) => node.html.slice(0, 200));
  return violations.map(({ id, help, nodes }) => `${id}: ${help}: ${examples(nodes)}`);
}"""
_OVERFLOW: Final = """async () => {
  for (let frame = 0; frame < 2; frame += 1) await new Promise(requestAnimationFrame);
  const root = document.documentElement;
  if (root.scrollWidth <= root.clientWidth) return [];
  return [...document.querySelectorAll("body *")]
    .filter((each) => each.getBoundingClientRect().right > root.clientWidth + 1)
    .map((each) => each.outerHTML.slice(0, 160)).slice(0, 5);
}"""


class WatchedPage:
    """A browser page with a session of its own; `faults` has what it did wrong."""

    def __init__(self, context: BrowserContext, page: Page, origin: str) -> None:
        self.context = context
        self.page = page
        self.origin = origin
        self.faults: list[str] = []
        self._tolerated: list[re.Pattern[str]] = []
        self._in_flight: set[Request] = set()
        self._has_settled = asyncio.Event()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", self._on_console)
        page.on("pageerror", self._on_page_error)
        context.on("request", self._on_request)
        page.on("request", self._on_asked)
        page.on("requestfinished", self._on_answered)
        page.on("requestfailed", self._on_answered)

    @classmethod
    async def open(cls, browser: Browser, origin: str, **options: Any) -> WatchedPage:
        """Open a page at no address yet, in a context without cookies."""
        context = await browser.new_context(
            base_url=origin, viewport=options.pop("viewport", WIDE), **options
        )
        await context.add_init_script(_REPORT_VIOLATIONS)
        return cls(context, await context.new_page(), origin)

    def tolerate(self, pattern: str) -> None:
        """Do not count faults of this form: the test causes them."""
        self._tolerated.append(re.compile(pattern))

    def allow_refusal(self, status: HTTPStatus, *paths: str) -> None:
        """Do not count that the node refuses these paths, with any query, with this status."""
        for path in paths:
            address = re.escape(f"{self.origin}{path}")
            self.tolerate(rf"^console error: .* status of {status:d} \(.*\) \({address}(\?.*)?\)$")

    def forgive(self) -> None:
        """Forget what it did until now, and what was tolerated."""
        self.faults.clear()
        self._tolerated.clear()

    def check(self) -> None:
        """Fail if the page did anything that it must not do."""
        faults = [each for each in self.faults if not any(form.search(each) for form in self._tolerated)]
        assert not faults, faults

    async def leave(self) -> None:
        """Leave the current screen, and wait until all that it asked for is answered or given up.

        A screen repeats its requests when the mesh changes. On a page that stays open, each later
        refusal would count as a fault of the test that gets the page next.
        """
        if self.page.is_closed() or not await self.page.evaluate(_IS_SIGNED_IN):
            return
        await self.page.evaluate(_FOLLOW, _NOWHERE)
        await self.page.get_by_role("heading", level=1, name="Not found").wait_for()
        async with asyncio.timeout(PATIENCE_MS / 1000):
            await self._has_settled.wait()
        await self.page.evaluate("0")  # what the browser has said until now is heard before its answer

    async def sign_in(self, node: NodeProcess, name: str = "alice", *, read_only: bool = False) -> None:
        """Sign in with a one-time code, as `vox-mesh console` does, and wait until the console is shown."""
        await self.page.goto(await node.console_path(name, read_only=read_only))
        await self.page.get_by_role("navigation", name="Screens", include_hidden=True).wait_for(
            state="attached"
        )

    async def show(self, path: str, title: str, *, is_loaded: bool = False) -> None:
        """Go to a path of the console and wait for the title of its screen.

        As a link does: the page stays. With `is_loaded`, it is loaded as from an address that was typed.
        """
        if is_loaded or not self.page.url.startswith(f"{self.origin}/ui/"):
            await self.page.goto(f"/ui/{path}")
        else:
            await self.page.evaluate(_FOLLOW, f"/ui/{path}")
        await self.page.get_by_role("heading", level=1, name=title).wait_for()

    async def violations(self, *rules: str) -> list[str]:
        """Return the violations that axe finds on the current page, by all rules or by these."""
        if not await self.page.evaluate("() => 'axe' in window"):
            await self.page.evaluate(_axe())
        found: list[str] = await self.page.evaluate(_RUN_AXE, [*rules] or None)
        return found

    async def overflowing(self) -> list[str]:
        """Return the elements that make the page scroll sideways."""
        found: list[str] = await self.page.evaluate(_OVERFLOW)
        return found

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"console {message.type}: {message.text} ({message.location.get('url')})")

    def _on_asked(self, request: Request) -> None:
        if not request.url.endswith(_STREAM):
            self._in_flight.add(request)
            self._has_settled.clear()

    def _on_answered(self, request: Request) -> None:
        self._in_flight.discard(request)
        if not self._in_flight:
            self._has_settled.set()

    def _on_page_error(self, error: Error) -> None:
        self.faults.append(f"page error: {error}")

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith((f"{self.origin}/", "data:", "blob:")):
            self.faults.append(f"request off origin: {request.url}")


@cache
def _axe() -> str:
    return (packages("npm-web") / "axe-core" / "axe.min.js").read_text()
