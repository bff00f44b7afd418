"""Lines on the web console, in a real browser: how soon it is drawn and follows, and what it costs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from bench.environment import BenchEnvironment
from bench.figures import Figure, Found, LeftOut, Of, at_most
from bench.lines.service import UpNode, up_node
from bench.measure import p99
from tools.install_browser import NoBrowser
from tools.install_browser import browser as browser_path
from tools.vendor_web import WEB
from vox_mesh.http.console.files import read_files

_TOKEN: Final = "a-token-for-the-people-who-look-at-it"
_BEARER: Final = {"Authorization": f"Bearer {_TOKEN}"}
_SETTINGS: Final = {"VOX_MESH_ENABLED": "1", "VOX_MESH_TOKEN": _TOKEN, "VOX_MESH_RATE_LIMIT": "100000"}
_PAINT_MS: Final = 300.0
_PIXEL_P50_MS: Final = 100.0
_PIXEL_P99_MS: Final = 300.0
_KILOBYTES: Final = 100.0
_IDLE_PERCENT: Final = 2.0
_FRAME_MS: Final = 50.0
_CONSOLES: Final = 10
_CHANGES: Final = 200
_JOBS: Final = 10_000
_QUICK: Final = 10  # times fewer of each, for a short look
_BATCH: Final = 500
_SETTLED_S: Final = 3.0

_NOTE_PAINT: Final = """
const note = () => {
  if (window.painted || !document.querySelector("main h1")) return;
  window.painted = Infinity;
  requestAnimationFrame(() => setTimeout(() => { window.painted = performance.now(); }));
};
new MutationObserver(note).observe(document, { childList: true, subtree: true });
"""
_NOTE_KEY: Final = """(key) => {
  window.drawn = new Promise((resolve) => {
    const look = () => {
      if (!document.querySelector("main").textContent.includes(key)) return;
      watching.disconnect();
      requestAnimationFrame(() => setTimeout(() => resolve(performance.timeOrigin + performance.now())));
    };
    const watching = new MutationObserver(look);
    watching.observe(document, { childList: true, subtree: true, characterData: true });
  });
}"""
_SCROLL: Final = """async (rows) => {
  const table = document.querySelector(".table .scroll");
  let frames = 0;
  while (Number(table.getAttribute("aria-rowcount")) <= rows
      || table.scrollTop + table.clientHeight + 1 < table.scrollHeight) {
    table.scrollTop += 400;
    await new Promise(requestAnimationFrame);
    frames += 1;
  }
  return frames;
}"""
_CATEGORIES: Final = ("toplevel", "disabled-by-default-devtools.timeline", "__metadata")
_TASKS: Final = frozenset({"RunTask", "ThreadControllerImpl::RunTask"})
_RENDERER: Final = "CrRendererMain"


async def console(environment: BenchEnvironment) -> list[Found]:
    """Measure the console of a node on a file."""
    try:
        path = str(browser_path())
    except NoBrowser as reason:
        return [LeftOut("console", "the web console in a real browser", str(reason))]
    divisor = 1 if environment.pace.settled else _QUICK
    async with (
        up_node(environment.folder / "console", _SETTINGS) as node,
        async_playwright() as driver,
        httpx.AsyncClient(base_url=node.url, headers=_BEARER, trust_env=False, timeout=60) as client,
    ):
        browser = await driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        return [
            await _paint(browser, client, environment.pace.rounds),
            *await _pixels(browser, client, _CHANGES // divisor),
            await _bytes(client),
            await _idle(browser, client, node, environment.pace.idle_s),
            await _frames(browser, client, _JOBS // divisor),
        ]


async def _paint(browser: Browser, client: httpx.AsyncClient, rounds: int) -> Figure:
    """From the opening of the address with a code, with an empty cache, until the first screen is drawn."""
    took: list[float] = []
    for _ in range(rounds + 1):
        async with _signed_in(browser, client, _NOTE_PAINT) as page:
            await page.wait_for_function("Number.isFinite(window.painted)")
            took.append(await page.evaluate("window.painted"))
    what = "from the opening of the console, signing in included, until the first screen is drawn"
    return Figure("console-paint", what, "ms", took[1:], target=at_most(_PAINT_MS, Of.OURS))


async def _pixels(browser: Browser, client: httpx.AsyncClient, changes: int) -> list[Figure]:
    """From the request that changes something until it is drawn."""
    took: list[float] = []
    async with _signed_in(browser, client) as page:
        await _show(page, "locks", "Locks")
        for number in range(changes):
            key = f"pixel:{number}:"
            await page.evaluate(_NOTE_KEY, key)
            began = time.time() * 1e3
            await _ask(client, "/v1/locks", {"keys": [key], "agent": f"agent-{number}", "ttl": "60s"})
            took.append(await page.evaluate("window.drawn") - began)
            await _ask(client, "/v1/locks/release-held", {"agent": f"agent-{number}"})
    what = "from the request of a lock until it is drawn in an open console"
    return [
        Figure("console-pixel", what, "ms", took, target=at_most(_PIXEL_P50_MS, Of.OURS)),
        Figure(
            "console-pixel-p99", f"{what}, p99", "ms", [p99(took)], target=at_most(_PIXEL_P99_MS, Of.OURS)
        ),
    ]


async def _bytes(client: httpx.AsyncClient) -> Figure:
    """The size of all files of the console as they are sent."""
    total = 0
    for name in read_files(WEB):
        if name.endswith(".txt"):
            continue
        async with client.stream("GET", f"/ui/static/{name}") as answer:
            answer.raise_for_status()
            total += sum([len(each) async for each in answer.aiter_raw()])
    what = "all files of the console, compressed"
    return Figure("console-bytes", what, "kB", [total / 1e3], target=at_most(_KILOBYTES, Of.OURS))


async def _idle(browser: Browser, client: httpx.AsyncClient, node: UpNode, seconds: float) -> Figure:
    """The processor time of a node while nothing happens, and consoles are open."""
    pages = [_signed_in(browser, client) for _ in range(_CONSOLES)]
    for each in pages:
        await each.__aenter__()
    try:
        await asyncio.sleep(min(_SETTLED_S, seconds))
        before = node.cpu_s()
        await asyncio.sleep(seconds)
        percent = (node.cpu_s() - before) / seconds * 100
    finally:
        for each in pages:
            await each.__aexit__(None, None, None)
    what = f"share of a core that a node with {_CONSOLES} open consoles takes, while nothing happens"
    return Figure("console-idle", what, "%", [percent], target=at_most(_IDLE_PERCENT, Of.OURS))


async def _frames(browser: Browser, client: httpx.AsyncClient, jobs: int) -> Figure:
    """The longest frame while all jobs are scrolled through, and read on the way."""
    for first in range(0, jobs, _BATCH):
        manifests = [{"kind": "bench.scroll", "payload": {"n": first + n}} for n in range(_BATCH)]
        await _ask(client, "/v1/jobs", {"manifests": manifests})
    async with _signed_in(browser, client) as page:
        await _show(page, "jobs", "Jobs")
        await page.locator(".table .scroll [data-row]").first.wait_for()
        await browser.start_tracing(page=page, categories=["-*", *_CATEGORIES])
        try:
            frames: float = await page.evaluate(_SCROLL, jobs)
        finally:
            trace = json.loads(await browser.stop_tracing())
    tasks = _task_times_ms(trace["traceEvents"])
    what = f"the longest task of the page while {jobs:,} jobs are scrolled through, processor time"
    notes = {"p99": p99(tasks), "frames": frames, "tasks": float(len(tasks))}
    return Figure("console-frame", what, "ms", [max(tasks)], target=at_most(_FRAME_MS, Of.OURS), notes=notes)


def _task_times_ms(events: Sequence[dict[str, Any]]) -> list[float]:
    """Return the processor time of each task in a trace, on the main threads of pages.

    A frame is drawn within a task. Other programs that want the processor make no task take more of it.
    """
    threads = {
        (each["pid"], each["tid"])
        for each in events
        if each.get("name") == "thread_name" and each["args"].get("name") == _RENDERER
    }
    return [
        each["tdur"] / 1e3
        for each in events
        if each.get("name") in _TASKS and "tdur" in each and (each["pid"], each["tid"]) in threads
    ]


@asynccontextmanager
async def _signed_in(browser: Browser, client: httpx.AsyncClient, script: str = "") -> AsyncIterator[Page]:
    """A page of a person who has just signed in, in a browser that remembers nothing."""
    context: BrowserContext = await browser.new_context(base_url=str(client.base_url))
    try:
        if script:
            await context.add_init_script(script)
        page = await context.new_page()
        await page.goto((await _ask(client, "/ui/codes", {"name": "bench"}))["path"])
        await page.locator("main h1").wait_for()
        yield page
    finally:
        await context.close()


async def _show(page: Page, path: str, title: str) -> None:
    await page.goto(f"/ui/{path}")
    await page.get_by_role("heading", level=1, name=title).wait_for()
    await page.wait_for_load_state("load")


async def _ask(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Any:
    answer = await client.post(path, json=body)
    if answer.is_error:
        raise RuntimeError(f"POST {path} was answered with {answer.status_code}: {answer.text}")
    return answer.json() if answer.content else None
