"""A page whose connection is cut: it says so, and then has everything that happened, each thing once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Route, expect

from proof.chaos.proxy import Proxy
from tests.support.console.additions import add_ended_jobs, new_name
from tests.support.console.watched_page import WatchedPage
from tests.support.running.lengths import SOAK
from tools.fleet.fleet import CODERS, SECOND, SERVING, Fleet, report, schedule, take

AWAY: Final = r"Failed to load resource|ERR_|net::|request off origin: .*/livez$"
MISSED: Final = 2_000 if SOAK else 120
"""Jobs that are scheduled and aborted while a page is cut off: two entries of the log each."""

_RECORD: Final = """(kind) => {
  window.heard = [];
  const parse = JSON.parse;
  JSON.parse = (text, ...rest) => {
    const value = parse(text, ...rest);
    if (value?.op_id !== undefined && text.includes(kind)) window.heard.push(value.op_id);
    return value;
  };
}"""
"""Records the entries of the log that name a kind, as the stream brings them."""


class CutOff(NamedTuple):
    """A page that reaches its node through a proxy."""

    watched: WatchedPage
    proxy: Proxy

    @property
    def page(self) -> Page:
        """The page in the browser."""
        return self.watched.page

    async def cut(self) -> None:
        """Cut all connections, and wait until the page says so."""
        await self.proxy.refuse()
        alert = self.page.get_by_role("alert").filter(has_text=f"{SERVING} does not answer")
        await expect(alert.get_by_role("link", name=f"Open at {SECOND}")).to_be_visible()

    async def mend(self) -> None:
        """Let it connect again, and wait until the page has."""
        await self.proxy.accept()
        await expect(self.page.get_by_text(f"{SERVING} does not answer")).to_have_count(0)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def proxied(browser: Browser, fleet: Fleet) -> AsyncIterator[CutOff]:
    """A signed-in page behind a proxy, for the tests of this module."""
    proxy = Proxy(urlsplit(fleet.node.url).port or 0)
    await proxy.accept()
    watched = await WatchedPage.open(browser, proxy.url)
    watched.tolerate(AWAY)
    await watched.sign_in(fleet.node)
    yield CutOff(watched, proxy)
    await watched.context.close()
    await proxy.refuse()
    watched.check()


async def test_a_job_that_ended_while_the_page_was_cut_off_is_shown_as_it_is(
    proxied: CutOff, fleet: Fleet
) -> None:
    """Also if nothing was in the log before: then the stream has no place from which it could resume."""
    kind = new_name("cut")
    (job,) = await schedule(fleet.node, {"kind": kind})
    await proxied.watched.show(f"job/{job}", kind, is_loaded=True)
    await expect(proxied.page.get_by_role("main")).to_contain_text("No worker or agent has taken it yet")
    await proxied.cut()
    _, token = await take(fleet.node, kind, CODERS[2])
    await report(fleet.node, job, token, CODERS[2], "succeeded", result={"lines": 12})
    await proxied.mend()
    await expect(proxied.page.get_by_role("main")).to_contain_text("verified")
    await expect(proxied.page.get_by_role("region", name="Outputs")).to_contain_text('"lines": 12')


async def test_a_page_that_was_cut_off_for_long_misses_nothing_and_gets_nothing_twice(
    proxied: CutOff, fleet: Fleet
) -> None:
    kind, page = new_name("behind"), proxied.page
    await proxied.watched.show(f"jobs?kind={kind}", "Jobs")
    await page.evaluate(_RECORD, kind)
    await schedule(fleet.node, {"kind": kind, "payload": {"n": "before"}})
    rows = page.get_by_role("table", name="Jobs")
    await expect(rows.get_by_role("row").filter(has_text=kind)).to_have_count(1)
    await proxied.cut()
    await add_ended_jobs(fleet, kind, MISSED)
    await proxied.mend()
    await schedule(fleet.node, {"kind": kind, "payload": {"n": "after"}})
    shown = page.get_by_role("navigation", name="States").get_by_role("link", name="All")
    await expect(shown).to_have_text(f"All {MISSED + 2:,}")
    written = await _entries(fleet, kind)
    await page.wait_for_function("count => window.heard.length >= count", arg=len(written))
    assert await page.evaluate("window.heard") == written


async def _entries(fleet: Fleet, kind: str) -> list[str]:
    """Return the ids of the entries that name a kind of jobs, in their order in the log."""
    found: list[str] = []
    query: dict[str, str] = {}
    while True:
        page = await fleet.node.get("/v1/oplog", limit=500, **query)
        found += [each["op_id"] for each in page["items"] if kind in f"{each['payload']}"]
        if page["next"] is None or not page["items"]:
            return found
        query = {"cursor": page["next"]}


class LosingAnswers:
    """Lets the first write to a path reach the node, and loses the answer."""

    def __init__(self) -> None:
        self.lost = 0

    async def __call__(self, route: Route) -> None:
        if route.request.method != "POST" or self.lost:
            await route.continue_()
            return
        self.lost += 1
        headers = {**await route.request.all_headers(), "sec-fetch-site": "same-origin"}
        answer = await route.fetch(headers=headers)
        assert answer.ok, await answer.text()
        await route.abort()


@pytest.mark.parametrize("action", ["a job is scheduled", "a message is sent", "a message is sent in place"])
async def test_what_is_sent_again_because_its_answer_was_lost_is_done_once(
    signed_in: WatchedPage, fleet: Fleet, action: str
) -> None:
    page, name = signed_in.page, new_name("once")
    signed_in.tolerate(AWAY)
    losing = LosingAnswers()
    path = "/v1/jobs" if action == "a job is scheduled" else "/v1/messages"
    if action == "a job is scheduled":
        await signed_in.show("jobs?new=1", "Jobs")
        await page.get_by_label("Kind", exact=True).last.fill(name)
        button = page.get_by_role("dialog").get_by_role("button", name="Schedule")
    elif action == "a message is sent":
        await signed_in.show(f"messages?write=1&to={name}", "Messages")
        await page.get_by_label("Text").fill("Once.")
        button = page.get_by_role("button", name="Send")
    else:
        await fleet.node.send(
            "/v1/messages", {"to": name, "sender": "planner", "payload": "Now.", "ack_within": "1ms"}
        )
        await signed_in.show("?kind=overdue_ack", "Needs you")
        await page.get_by_role("button", name=f"Message {name}").click()
        await page.get_by_role("textbox", name="Message").fill("Once.")
        button = page.get_by_role("dialog").get_by_role("button", name="Send")
    await page.route(f"**{path}", losing)
    await button.click()
    await expect(page.get_by_role("alert")).to_contain_text("does not answer")
    await button.click()
    await expect(page.get_by_role("alert")).to_have_count(0)
    await page.unroute(f"**{path}")
    assert losing.lost == 1
    query = {"kind": name} if action == "a job is scheduled" else {"receiver": name, "sender": "person:alice"}
    assert len((await fleet.node.get(path, **query))["items"]) == 1
