"""What people do on the console: act on everything that matches, or only read."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from playwright.async_api import expect

from tests.support.console.additions import add_ended_jobs, add_failed_job, add_lock
from tests.support.console.watched_page import WatchedPage
from tools.fleet.fleet import Fleet

_WRITING: Final = (
    *(
        "Abort",
        "Answer",
        "Approve",
        "Break",
        "Change",
        "Clear it",
        "Declare",
        "Deny",
        "Drain",
        "Message",
        "Pause",
    ),
    *(
        "Raise",
        "Redeliver",
        "Remove",
        "Reply",
        "Resolve",
        "Resume",
        "Retry",
        "Schedule",
        "Send",
        "Take",
        "Write",
    ),
)
"""How the names of buttons that change something begin."""

_BREAK: Final = """async (key) => {
  const secret = localStorage.getItem("vox-mesh-console");
  const headers = { "Vox-Console": secret, "Content-Type": "application/json" };
  const body = JSON.stringify({ lock_key: key, reason: "mine" });
  const answer = await fetch("/v1/locks/break", { method: "POST", headers, body });
  return [answer.status, (await answer.json()).code];
}"""


async def test_everything_that_matches_is_retried_not_only_what_is_visible(
    signed_in: WatchedPage, fleet: Fleet
) -> None:
    kind = "bulk.resize"
    await add_ended_jobs(fleet, kind, 500)
    page = signed_in.page
    await signed_in.show(f"jobs?kind={kind}&state=aborted", "Jobs")
    await page.get_by_role("button", name="Retry 500 aborted").click()
    assert await page.locator(".table [data-row]").count() < 100
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Retry 500 aborted")
    await dialog.get_by_role("button", name="Retry 500").click()
    await expect(page.locator("body")).to_contain_text("Retried 500", timeout=20_000)
    (counts,) = (await fleet.node.get("/v1/jobs/counts", kind=kind))["items"]
    assert (counts["pending"], counts["aborted"]) == (500, 500)


async def test_a_person_who_only_reads_sees_no_buttons_and_is_refused(
    reader: WatchedPage, fleet: Fleet
) -> None:
    key = await add_lock(fleet)
    await add_failed_job(fleet, "read.only")
    page = reader.page
    screens = {
        "": "deploy-notes",
        "jobs": "read.only",
        f"job/{fleet.ids['running']}": "code.refactor",
        "locks": key,
        f"conflicts/{fleet.ids['conflict']}": "use the blue pool after 18:00",
        "rhythm": "coder-ben",
        "costs": "coder-ann",
    }
    for path, marker in screens.items():
        await page.goto(f"/ui/{path}")
        await page.locator("main").get_by_text(marker).first.wait_for()
        names = [await each.inner_text() for each in await page.locator("main button").all()]
        assert [name for name in names if name.strip().startswith(_WRITING)] == [], path
    reader.allow_refusal(HTTPStatus.FORBIDDEN, "/v1/locks/break")
    assert await page.evaluate(_BREAK, key) == [403, "read_only"]
    assert len((await fleet.node.get("/v1/locks", key=key))["items"]) == 1
