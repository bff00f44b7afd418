"""Every action in place on what needs a person: done at the node, in the name of the person."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest
from playwright.async_api import Locator, Page, expect

from tests.support.console.additions import (
    add_approval,
    add_broken_promise,
    add_conflict,
    add_dead_letter,
    add_dead_node,
    add_failed_job,
    add_stuck_job,
    new_name,
    row_of,
)
from tests.support.console.watched_page import WatchedPage
from tools.fleet.fleet import Fleet, report, schedule, take

PERSON = "person:alice"


def item_of(page: Page, text: str) -> Locator:
    """Return the thing with this text."""
    return page.get_by_role("listitem").filter(has_text=text)


async def entry_of(fleet: Fleet, kind: str, text: str) -> Any:
    """Return the entry of the log of this kind that names a text."""
    entries = (await fleet.node.get("/v1/oplog", kind=kind, order="newest"))["items"]
    (found,) = [each for each in entries if text in f"{each['payload']}"]
    return found


async def decide(page: Page, title: str, action: str, reason: str) -> None:
    """Give a reason in a dialog and go on."""
    dialog = page.get_by_role("dialog", name=title)
    await dialog.get_by_label("Reason").fill(reason)
    await dialog.get_by_role("button", name=action, exact=True).click()


@pytest.mark.parametrize(
    ("side", "title", "content"),
    [
        ("left", "Write the left side?", "use the blue pool after 18:00"),
        ("right", "Keep the right side?", "use the blue pool, then the green one"),
    ],
)
async def test_a_side_of_a_conflict_is_taken_in_place(
    signed_in: WatchedPage, fleet: Fleet, side: str, title: str, content: str
) -> None:
    page, conflict = signed_in.page, await add_conflict(fleet)
    await signed_in.show("?kind=conflict", "Needs you")
    item = item_of(page, conflict.name)
    await item.get_by_role("button", name=f"Take {side}").click()
    taken = page.get_by_role("dialog").locator(".conflicts-side.taken").filter(has_text="pool")
    await expect(taken.get_by_role("code")).to_have_text(content)
    await decide(page, title, f"Take {side}", f"the {side} one is right")
    await expect(item).to_have_count(0)
    assert (await row_of(fleet, conflict.name))["content"] == content
    shown = await fleet.node.get(f"/v1/conflicts/{conflict.conflict_id}")
    assert (shown["resolution"], shown["resolved_agent"]) == (side, PERSON)
    entry = await entry_of(fleet, "ResolveConflict", conflict.conflict_id)
    assert (entry["payload"]["reason"], entry["payload"]["who"]["agent"]) == (
        *(f"the {side} one is right", PERSON),
    )


async def test_both_sides_of_a_broken_promise_are_written_to(signed_in: WatchedPage, fleet: Fleet) -> None:
    page, asker, helper = signed_in.page, new_name("asker"), new_name("helper")
    await add_broken_promise(fleet, asker, helper)
    await signed_in.show("?kind=broken_promise", "Needs you")
    item = item_of(page, f"{helper} broke a promise to {asker}")
    for agent in (helper, asker):
        await item.get_by_role("button", name=f"Message {agent}").click()
        dialog = page.get_by_role("dialog", name="Send a message")
        await dialog.get_by_role("textbox", name="Message").fill(f"What now, {agent}?")
        await dialog.get_by_role("button", name="Send").click()
        await expect(dialog).to_have_count(0)
        (sent,) = (await fleet.node.get("/v1/messages", receiver=agent, sender=PERSON))["items"]
        assert sent["payload"] == {"text": f"What now, {agent}?"}
    await expect(item).to_be_visible()  # a message keeps no promise


async def test_a_stuck_job_is_aborted(signed_in: WatchedPage, fleet: Fleet) -> None:
    page, kind, agent = signed_in.page, new_name("endless"), new_name("sleeper")
    job = await add_stuck_job(fleet, kind, agent)
    await signed_in.show("?kind=stuck_agent", "Needs you")
    item = item_of(page, f"{agent} makes no progress with job {kind}")
    await item.get_by_role("button", name="Abort").click()
    await decide(page, "Abort the job?", "Abort", "it has slept enough")
    await expect(item).to_have_count(0)
    found = await fleet.node.get(f"/v1/jobs/{job}")
    assert (found["state"], found["reason"]) == ("aborted", "it has slept enough")
    assert (await entry_of(fleet, "AbortJob", job))["agent"] == PERSON


async def test_a_stuck_job_is_returned_to_the_queue_and_taken_by_another(
    signed_in: WatchedPage, fleet: Fleet
) -> None:
    page, kind, agent = signed_in.page, new_name("endless"), new_name("sleeper")
    job = await add_stuck_job(fleet, kind, agent)
    await signed_in.show("?kind=stuck_agent", "Needs you")
    item = item_of(page, f"{agent} makes no progress with job {kind}")
    await item.get_by_role("button", name="Return to the queue").click()
    await decide(page, "Return the job to the queue?", "Return to the queue", "another one, please")
    await expect(item).to_have_count(0)
    assert (await entry_of(fleet, "YieldWork", job))["agent"] == PERSON
    other = new_name("other")
    assert (await take(fleet.node, kind, other))[0] == job


async def test_a_dead_node_is_removed(signed_in: WatchedPage, fleet: Fleet) -> None:
    """It appears by itself once its heartbeats are missed."""
    page, name = signed_in.page, new_name("dead")
    await signed_in.show("?kind=node_dead", "Needs you")
    await add_dead_node(fleet, name)
    item = item_of(page, f"Node {name} is dead")
    await item.get_by_role("button", name="Remove").click()
    dialog = page.get_by_role("dialog", name="Remove the node?")
    await expect(dialog).to_contain_text(name)
    await dialog.get_by_role("button", name="Remove").click()
    await expect(item).to_have_count(0)
    assert (await fleet.node.ask("GET", f"/v1/nodes/{name}")).status_code == HTTPStatus.NOT_FOUND
    entry = await entry_of(fleet, "RemoveNode", name)
    assert (entry["agent"], entry["accepted"]) == (PERSON, True)


async def test_all_failed_jobs_of_the_list_are_retried(signed_in: WatchedPage, fleet: Fleet) -> None:
    page, kind = signed_in.page, new_name("several")
    jobs = {await add_failed_job(fleet, kind) for _ in range(2)}
    await signed_in.show("?kind=failed_job", "Needs you")
    await expect(item_of(page, f"Job {kind} failed")).to_have_count(2)
    await page.get_by_role("button", name="Retry all").click()
    await page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    await expect(page.get_by_role("main").get_by_text("Nothing here: failed jobs")).to_be_visible()
    listed = (await fleet.node.get("/v1/jobs", kind=kind))["items"]
    assert {each["retry_of"] for each in listed if each["job_id"] not in jobs} == jobs
    for job in jobs:
        assert (await entry_of(fleet, "ScheduleJob", f"'retry_of': '{job}'"))["agent"] == PERSON
    await add_failed_job(fleet, kind)  # other tests look for one


async def test_the_sender_of_a_dead_letter_is_written_to_in_its_thread(
    signed_in: WatchedPage, fleet: Fleet
) -> None:
    page, letter = signed_in.page, await add_dead_letter(fleet, {"text": "disk full"})
    receiver = (await fleet.node.get(f"/v1/messages/{letter}"))["receiver_agent"]
    await signed_in.show("?kind=dead_letter", "Needs you")
    item = item_of(page, f"from monitor to {receiver}")
    await item.get_by_role("button", name="Message monitor").click()
    dialog = page.get_by_role("dialog", name="Send a message")
    await dialog.get_by_role("textbox", name="Message").fill(f"{receiver} is gone.")
    await dialog.get_by_role("button", name="Send").click()
    await expect(dialog).to_have_count(0)
    sent = (await fleet.node.get("/v1/messages", receiver="monitor", sender=PERSON))["items"]
    assert {"text": f"{receiver} is gone."} in [each["payload"] for each in sent]


async def test_a_limit_of_money_is_raised(signed_in: WatchedPage, fleet: Fleet) -> None:
    page, agent, kind = signed_in.page, new_name("spender"), new_name("costly")
    subject = f"agent:{agent}"
    budget = {"max_tokens": 1_000_000, "max_money": "0.50 USD"}
    await fleet.node.send("/v1/budgets", {"subject": subject, "budget": budget}, method="PUT")
    await schedule(fleet.node, {"kind": kind})
    job, token = await take(fleet.node, kind, agent)
    usage = {"input_tokens": 150_000, "output_tokens": 0, "model": "sonnet"}
    await report(fleet.node, job, token, agent, "succeeded", usage=usage)
    await signed_in.show("?kind=budget", "Needs you")
    item = item_of(page, f"{subject} has used 90%")
    await item.get_by_role("button", name="Raise the limit").click()
    await expect(page.get_by_role("textbox", name="New limit, in USD")).to_have_value("0.75")
    await page.get_by_role("dialog").get_by_role("button", name="Raise").click()
    await expect(item).to_have_count(0)
    (found,) = (await fleet.node.get("/v1/budgets", subject=subject))["items"]
    assert found["budget"] == budget | {"max_money": "0.75 USD"}
    assert (await entry_of(fleet, "SetBudget", "0.75 USD"))["agent"] == PERSON


async def test_an_approval_is_given_on_its_own_page(signed_in: WatchedPage, fleet: Fleet) -> None:
    page, kind = signed_in.page, new_name("deploy")
    approval = await add_approval(fleet, kind, {"version": "3.1.4"})
    await signed_in.show(f"approval/{approval}", "Approval")
    asked = page.get_by_role("region", name="Asked for")
    await expect(asked).to_contain_text('"version": "3.1.4"')
    await page.get_by_role("button", name="Approve").click()
    await decide(page, "Approve this?", "Approve", "checked")
    await expect(asked).to_contain_text(f"applied by {PERSON}")
    await expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    found = await fleet.node.get(f"/v1/approvals/{approval}")
    assert (found["state"], found["decided_by"], found["reason"]) == ("applied", PERSON, "checked")
