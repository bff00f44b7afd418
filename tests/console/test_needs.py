"""The screen of what needs a person: live, with every action in place, by mouse and by keyboard alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from httpx import Response
from playwright.async_api import Locator, Page, expect

from tests.support.console.additions import (
    add_approval,
    add_dead_letter,
    add_failed_job,
    add_lock,
    add_question,
)
from tests.support.console.keyboard import tab_to
from tests.support.console.watched_page import WatchedPage
from tools.fleet.fleet import Fleet, send_message
from vox_mesh.store.script import new_key


@pytest_asyncio.fixture(loop_scope="session")
async def page(signed_in: WatchedPage) -> Page:
    """The screen, opened."""
    await signed_in.show("", "Needs you")
    await signed_in.page.get_by_role("region", name="The mesh now").get_by_text("Beat ").first.wait_for()
    return signed_in.page


@pytest.fixture
def name() -> str:
    """A name that nothing else has."""
    return new_key()[-6:].lower()


def item_of(page: Page, text: str) -> Locator:
    """Return the thing with this text."""
    return page.get_by_role("listitem").filter(has_text=text)


async def _last_entry(fleet: Fleet, kind: str) -> Any:
    """Return the last entry of a kind in the log."""
    (*_, last) = (await fleet.node.get("/v1/oplog", kind=kind))["items"]
    return last


async def test_every_kind_is_listed_with_its_count_and_a_filter_shows_only_that(
    page: Page, fleet: Fleet
) -> None:
    counts = (await fleet.node.get("/v1/attention"))["counts"]
    for kind, title in (
        ("approval", "Approvals"),
        ("question", "Questions"),
        ("conflict", "Conflicts"),
        ("budget", "Budgets near their limit"),
        ("failed_job", "Failed jobs"),
        ("dead_letter", "Dead letters"),
        ("overdue_ack", "Overdue acknowledgements"),
        ("broken_promise", "Broken promises"),
    ):
        group = page.get_by_role("region", name=title)
        await expect(group.get_by_label("in all")).to_have_text(str(counts[kind]))
    kinds = page.get_by_role("navigation", name="Kinds")
    await kinds.get_by_role("link", name="Dead letters").click()
    await expect(page.get_by_role("heading", level=2)).to_have_text(["Dead letters"])
    assert page.url.endswith("/ui/?kind=dead_letter")
    await kinds.get_by_role("link", name="All").click()
    await expect(page.get_by_role("heading", name="Approvals")).to_be_visible()


async def test_an_approval_is_given_and_another_denied_by_keyboard(
    page: Page, fleet: Fleet, name: str
) -> None:
    given = await add_approval(fleet, f"deploy.{name}", {"version": name})
    item = item_of(page, f"deploy.{name}")
    await item.wait_for()  # it came by itself
    await tab_to(page, f"Approve: deployer asks for approval: job.schedule kind deploy.{name}, ScheduleJob")
    await page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Approve this?")
    await expect(dialog).to_contain_text(f'"version": "{name}"')
    await page.keyboard.type("looks right")
    await page.keyboard.press("Enter")
    await expect(item).to_have_count(0)
    await expect(page.locator("[data-key]:focus")).to_have_count(1)  # the next thing
    approval = await fleet.node.get(f"/v1/approvals/{given}")
    assert (approval["state"], approval["reason"]) == ("applied", "looks right")
    assert approval["decided_by"] == "person:alice"

    denied = await add_approval(fleet, f"rollback.{name}")
    await item_of(page, f"rollback.{name}").get_by_role("button", name="Deny").click()
    await page.get_by_role("dialog").get_by_role("button", name="Deny").click()
    await expect(item_of(page, f"rollback.{name}")).to_have_count(0)
    assert (await fleet.node.get(f"/v1/approvals/{denied}"))["state"] == "denied"


async def test_questions_are_answered_by_choice_and_by_text_with_the_keyboard(
    page: Page, fleet: Fleet, name: str
) -> None:
    chosen = await add_question(fleet, f"Which pool for {name}?", ("blue", "green"))
    await item_of(page, f"Which pool for {name}?").wait_for()
    written = await add_question(fleet, f"What name for {name}?")
    await item_of(page, f"What name for {name}?").wait_for()
    await tab_to(page, f"Which pool for {name}?")
    await tab_to(page, "green")
    await page.keyboard.press("Enter")
    await expect(item_of(page, f"Which pool for {name}?")).to_have_count(0)
    # The keyboard is at the next thing, not at the start of the page.
    await expect(page.locator("[data-key]:focus")).to_have_count(1)
    await page.keyboard.press("Shift+Tab")
    await tab_to(page, f"Answer to: What name for {name}?")
    await page.keyboard.type("<b>Otto</b>")
    await tab_to(page, "Answer")
    await page.keyboard.press("Enter")
    await expect(item_of(page, f"What name for {name}?")).to_have_count(0)
    answers = [(await _answer(fleet, job)) for job in (chosen, written)]
    assert answers == [("green", "person:alice"), ("<b>Otto</b>", "person:alice")]


async def _answer(fleet: Fleet, job: str) -> tuple[Any, str]:
    """Return the answer to the question of a job, and who gave it, as the log has them."""
    (entry,) = (await fleet.node.get("/v1/oplog", kind="AnswerJob", job=job))["items"]
    return entry["payload"]["answer"], entry["agent"]


async def test_failed_jobs_and_dead_letters_are_tried_again(page: Page, fleet: Fleet, name: str) -> None:
    job = await add_failed_job(fleet, f"resize.{name}")
    letter = await add_dead_letter(fleet, {"text": name})
    failed = item_of(page, f"Job resize.{name} failed")
    await failed.get_by_role("button", name="Retry").click()
    await expect(failed).to_have_count(0)
    retries = (await fleet.node.get("/v1/jobs", kind=f"resize.{name}"))["items"]
    assert [each["retry_of"] for each in retries if each["job_id"] != job] == [job]

    receiver = (await fleet.node.get(f"/v1/messages/{letter}"))["receiver_agent"]
    dead = item_of(page, f"from monitor to {receiver}")
    await dead.get_by_role("button", name="Redeliver").click()
    await expect(dead).to_have_count(0)
    assert (await fleet.node.get(f"/v1/messages/{letter}"))["state"] == "stored"


async def test_a_person_writes_to_an_agent_that_does_not_acknowledge(
    page: Page, fleet: Fleet, name: str
) -> None:
    receiver = f"slow-{name}"
    await send_message(fleet.node, "planner", receiver, "Please.", ack_within="1ms")
    await item_of(page, receiver).get_by_role("button", name=f"Message {receiver}").click()
    await page.get_by_role("textbox", name="Message").fill("Are you there?")
    await page.get_by_role("dialog").get_by_role("button", name="Send").click()
    await expect(page.get_by_text("Sent.", exact=True)).to_be_visible()
    (sent,) = (await fleet.node.get("/v1/messages", receiver=receiver, sender="person:alice"))["items"]
    assert sent["payload"] == {"text": "Are you there?"}


async def test_a_limit_is_raised_and_the_rest_of_the_budget_stays(
    page: Page, fleet: Fleet, name: str
) -> None:
    subject, kind = f"agent:spender-{name}", f"spend.{name}"
    budget = {"max_tokens": 100, "max_money": "7.00 USD"}
    await fleet.node.send("/v1/budgets", {"subject": subject, "budget": budget}, method="PUT")
    await fleet.node.send("/v1/jobs", {"manifests": [{"kind": kind}]}, agent="planner")
    agent = subject.removeprefix("agent:")
    (taken,) = await fleet.node.send("/v1/jobs/take", {"kinds": [kind]}, agent=agent)
    usage = {"input_tokens": 80, "output_tokens": 10, "model": "haiku"}
    report = {"claim_token": taken["claim_token"], "outcome": "succeeded", "usage": usage}
    await fleet.node.send(f"/v1/jobs/{taken['job_id']}/report", report, agent=agent)
    item = item_of(page, f"{subject} has used 90%")
    await item.get_by_role("button", name="Raise the limit").click()
    await expect(page.get_by_role("textbox", name="New limit")).to_have_value("150")
    await page.keyboard.press("Enter")
    await expect(item).to_have_count(0)
    (found,) = (await fleet.node.get("/v1/budgets", subject=subject))["items"]
    assert found["budget"] == budget | {"max_tokens": 150}


class Deadlock(NamedTuple):
    """Two agents that wait for each other's lock."""

    keys: list[str]
    waits: list[asyncio.Task[Response]]


@pytest_asyncio.fixture(loop_scope="session")
async def deadlock(fleet: Fleet, name: str) -> AsyncIterator[Deadlock]:
    """Agents ada and bob in a deadlock."""
    agents = f"ada-{name}", f"bob-{name}"
    keys = [await add_lock(fleet, agent) for agent in agents]
    waits = [
        asyncio.create_task(
            fleet.node.ask("POST", "/v1/locks", {"keys": [key], "agent": agent, "ttl": "1h", "wait": "60s"})
        )
        for agent, key in zip(agents, reversed(keys), strict=True)
    ]
    yield Deadlock(keys, waits)
    for task in waits:
        task.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


async def test_agents_in_a_deadlock_are_freed_by_breaking_a_lock(
    page: Page, fleet: Fleet, name: str, deadlock: Deadlock
) -> None:
    item = item_of(page, f"ada-{name}, bob-{name} wait for each other")
    await item.get_by_role("button", name="Break a lock").click()
    await page.get_by_role("combobox", name="Lock").select_option(deadlock.keys[1])
    await page.get_by_role("textbox", name="Reason").fill("they wait for each other")
    await page.get_by_role("dialog").get_by_role("button", name="Break the lock").click()
    assert (await deadlock.waits[0]).is_success
    await expect(item).to_have_count(0)
    entry = await _last_entry(fleet, "BreakLock")
    assert (entry["payload"]["reason"], entry["agent"]) == ("they wait for each other", "person:alice")


async def test_a_reader_sees_everything_and_can_do_nothing(
    reader: WatchedPage, fleet: Fleet, name: str
) -> None:
    await add_question(fleet, f"May {name} read?", ("yes", "no"))
    await reader.show("", "Needs you")
    await reader.page.get_by_role("region", name="Questions").wait_for()
    assert await reader.page.locator(".needs-groups button:not([aria-label^=Copy])").count() == 0
    assert await reader.page.locator(".needs-groups textarea, .needs-groups select").count() == 0
