"""The command palette: type a few letters to go to anything, or to act on it."""

from __future__ import annotations

from typing import Any, Final

import pytest
from playwright.async_api import Locator, Page, expect

from tests.support.console.additions import add_failed_job, add_lock, new_name
from tests.support.console.watched_page import WatchedPage
from tools.fleet.fleet import CODERS, SECOND, Fleet, schedule, take

_SELECTED_IS_SEEN: Final = """() => {
  const list = document.getElementById("choices").getBoundingClientRect();
  const { top, bottom } = document.querySelector("#choices [aria-selected=true]").getBoundingClientRect();
  return top >= list.top - 1 && bottom <= list.bottom + 1;
}"""

_CLOSE_AND_SEARCH: Final = """() => {
  document.querySelector("dialog").close();
  dispatchEvent(new KeyboardEvent("keydown", { key: "k", ctrlKey: true }));
}"""
"""Ctrl-K before the browser has reported the end of the dialog before."""


async def search(page: Page, text: str) -> Locator:
    """Open the palette with the keyboard and type a text; return its choices."""
    await page.keyboard.press("Control+k")
    field = page.get_by_role("combobox", name="Find or do")
    await expect(field).to_be_focused()
    await page.keyboard.type(text)
    return page.get_by_role("option")


async def last_entry(fleet: Fleet, **query: str) -> Any:
    """Return the last entry of the log that matches."""
    (entry,) = (await fleet.node.get("/v1/oplog", order="newest", limit=1, **query))["items"]
    return entry


async def choose(page: Page, choices: Locator, name: str) -> None:
    """Move to a choice with the arrow keys, and take it."""
    wanted = choices.filter(has_text=name)
    await expect(wanted).to_have_count(1)
    for _ in range(await choices.count()):
        if await wanted.get_attribute("aria-selected") == "true":
            break
        await page.keyboard.press("ArrowDown")
    await expect(wanted).to_have_attribute("aria-selected", "true")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog", name="Find or do")).to_have_count(0)


@pytest.mark.parametrize(("key", "dialog"), [("?", "Keys"), ("Control+k", "Find or do")])
async def test_it_opens_right_after_a_dialog_was_closed(
    signed_in: WatchedPage, key: str, dialog: str
) -> None:
    page = signed_in.page
    await page.keyboard.press(key)
    await page.get_by_role("dialog", name=dialog).wait_for()
    await page.evaluate(_CLOSE_AND_SEARCH)
    field = page.get_by_role("combobox", name="Find or do")
    await expect(field).to_be_focused()
    await page.keyboard.type("lock")
    await expect(field).to_have_value("lock")


@pytest.mark.parametrize("sort", ["job", "kind", "node", "agent", "lock", "thread", "conflict"])
async def test_a_few_letters_lead_to_anything(signed_in: WatchedPage, fleet: Fleet, sort: str) -> None:
    page, ids = signed_in.page, fleet.ids
    text, detail, address, title = {
        "job": (ids["running"][:12], "job running", f"job/{ids['running']}", "code.refactor"),
        "kind": ("code.ref", "kind ", "jobs?kind=code.refactor", "Jobs"),
        "node": (SECOND, "node ", f"fleet?node={SECOND}", "Fleet"),
        "agent": ("der-be", "agent", f"agent/{CODERS[1]}", CODERS[1]),
        "lock": ("src/mail", f"lock of {CODERS[1]}", "locks?key=file%3Asrc%2Fmail.py", "Locks"),
        "thread": ("gift-", "thread", "messages/gift-cards", "Messages"),
        "conflict": ("deploy-no", "conflict ", f"conflicts/{ids['conflict']}", "Conflict"),
    }[sort]
    await signed_in.show("health", "Health")
    choices = await search(page, text)
    await choose(page, choices, detail)
    await page.get_by_role("heading", level=1, name=title).wait_for()
    await expect(page).to_have_url(f"{fleet.node.url}/ui/{address}")


async def test_what_is_entered_before_it_is_found_is_opened_when_it_is(
    signed_in: WatchedPage, fleet: Fleet
) -> None:
    """Not what was listed for the letters before."""
    page = signed_in.page
    await signed_in.show("health", "Health")
    choices = await search(page, "coder")
    await expect(choices.filter(has_text=CODERS[0]).first).to_be_visible()
    await page.keyboard.type("-cem")
    await page.keyboard.press("Enter")
    await page.get_by_role("heading", level=1, name=CODERS[2]).wait_for()


async def test_the_selected_choice_is_always_seen_and_nothing_found_is_said(signed_in: WatchedPage) -> None:
    page = signed_in.page
    await signed_in.show("locks", "Locks")
    choices = await search(page, "")
    await expect(choices.first).to_be_visible()
    await page.set_viewport_size({"width": 360, "height": 400})
    for _ in range(await choices.count()):
        await page.keyboard.press("ArrowDown")
        await page.wait_for_function(_SELECTED_IS_SEEN)
    await page.keyboard.press("ArrowUp")
    await expect(choices.last).to_have_attribute("aria-selected", "true")
    await page.wait_for_function(_SELECTED_IS_SEEN)
    await page.keyboard.type("nothing has this name")
    await expect(page.get_by_role("dialog").get_by_role("status")).to_have_text("Nothing found.")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_a_person_writes_to_an_agent_from_anywhere(signed_in: WatchedPage, fleet: Fleet) -> None:
    page, agent, text = signed_in.page, CODERS[2], new_name("hello")
    await signed_in.show("health", "Health")
    await choose(page, await search(page, agent), f"Write to {agent}")
    await expect(page.get_by_role("combobox", name="To An agent")).to_have_value(agent)
    await page.get_by_label("Text").fill(text)
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_role("region", name="Conversation")).to_contain_text("not received")
    sent = (await fleet.node.get("/v1/messages", receiver=agent, sender="person:alice"))["items"]
    assert {"text": text} in [each["payload"] for each in sent]


async def test_a_running_job_is_aborted_from_anywhere(signed_in: WatchedPage, fleet: Fleet) -> None:
    page, kind = signed_in.page, new_name("stop")
    await schedule(fleet.node, {"kind": kind})
    job, _ = await take(fleet.node, kind, CODERS[2])
    await signed_in.show("health", "Health")
    await choose(page, await search(page, job[:16]), f"Abort {kind} {job[:8]}")
    dialog = page.get_by_role("dialog", name="Abort this job?")
    await expect(dialog.get_by_label("Reason")).to_be_focused()
    await page.keyboard.type("wrong branch")
    await page.keyboard.press("Enter")
    await expect(dialog).to_have_count(0)
    found = await fleet.node.get(f"/v1/jobs/{job}")
    assert (found["state"], found["reason"]) == ("aborted", "wrong branch")
    assert (await last_entry(fleet, kind="AbortJob", job=job))["agent"] == "person:alice"


async def test_a_failed_job_is_retried_from_anywhere(signed_in: WatchedPage, fleet: Fleet) -> None:
    page, kind = signed_in.page, new_name("redo")
    job = await add_failed_job(fleet, kind)
    await signed_in.show("health", "Health")
    await choose(page, await search(page, job[:16]), f"Retry {kind} {job[:8]}")
    await page.get_by_role("heading", level=1, name=kind).wait_for()
    listed = (await fleet.node.get("/v1/jobs", kind=kind))["items"]
    (again,) = [each for each in listed if each["retry_of"] == job]
    assert page.url == f"{fleet.node.url}/ui/job/{again['job_id']}"
    assert (await last_entry(fleet, job=again["job_id"]))["agent"] == "person:alice"


async def test_a_lock_is_broken_from_anywhere(signed_in: WatchedPage, fleet: Fleet) -> None:
    page, key = signed_in.page, await add_lock(fleet)
    await signed_in.show("health", "Health")
    await choose(page, await search(page, key), f"Break the lock on {key}")
    dialog = page.get_by_role("dialog", name="Break this lock?")
    await expect(dialog).to_contain_text(CODERS[2])
    await page.keyboard.type("its holder is on holiday")
    await page.keyboard.press("Enter")
    await expect(dialog).to_have_count(0)
    assert (await fleet.node.get("/v1/locks", key=key))["items"] == []
    entry = await last_entry(fleet, kind="BreakLock")
    assert (entry["agent"], entry["payload"]["reason"]) == ("person:alice", "its holder is on holiday")


async def test_a_reader_can_go_anywhere_and_do_nothing(reader: WatchedPage, fleet: Fleet) -> None:
    page = reader.page
    await reader.show("health", "Health")
    choices = await search(page, fleet.ids["running"][:16])
    await expect(choices.filter(has_text="job running")).to_have_count(1)
    await expect(choices.filter(has_text="action")).to_have_count(0)
    await page.keyboard.press("Escape")
    choices = await search(page, "")
    await expect(choices.filter(has_text="Locks")).to_have_count(1)
    actions = await choices.filter(has_text="action").all_inner_texts()
    assert [each.split("\n")[0] for each in actions] == ["Change between light and dark", "Sign out"]
    await page.keyboard.press("Escape")


async def test_a_question_to_the_person_is_answered_before_anything_else_opens(
    signed_in: WatchedPage, fleet: Fleet
) -> None:
    """Otherwise, the palette could lead to another screen under an open dialog."""
    page = signed_in.page
    await add_lock(fleet)
    await signed_in.show("locks", "Locks")
    await page.get_by_role("button", name="Break the lock on").first.click()
    await expect(page.get_by_label("Reason")).to_be_focused()
    await page.keyboard.press("Control+k")
    await page.keyboard.type("x")
    await expect(page.get_by_label("Reason")).to_have_value("x")
    await expect(page.get_by_role("dialog")).to_have_count(1)
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
