"""The screens of jobs: filters that stay while one types, and what a person does with one job."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from playwright.async_api import expect

from tests.support.console.additions import add_failed_job, new_name, stepping
from tests.support.console.watched_page import WatchedPage
from tools.fleet.fleet import CODERS, Fleet, report, schedule, take
from vox_mesh import JobContext


async def test_a_person_schedules_a_job_and_aborts_it_with_a_reason(
    signed_in: WatchedPage, fleet: Fleet
) -> None:
    page, kind = signed_in.page, new_name("by.hand")
    await signed_in.show("jobs", "Jobs")
    await page.get_by_role("button", name="Schedule a job").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Kind").fill(kind)
    await dialog.get_by_label("Payload").fill("{not json")
    await dialog.get_by_role("button", name="Schedule").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("Payload must be JSON")
    await dialog.get_by_label("Payload").fill('{"file": "<b>cart</b>"}')
    await dialog.get_by_role("button", name="Schedule").click()
    await page.get_by_role("heading", level=1, name=kind).wait_for()
    await expect(page.get_by_role("main")).to_contain_text('"file": "<b>cart</b>"')

    await page.get_by_role("button", name="Abort").click()
    await dialog.get_by_label("Reason").fill("not needed")
    await dialog.get_by_role("button", name="Abort").click()
    await expect(page.get_by_role("button", name="Retry", exact=True)).to_be_visible()
    (job,) = (await fleet.node.get("/v1/jobs", kind=kind))["items"]
    assert (job["state"], job["reason"]) == ("aborted", "not needed")
    entries = (await fleet.node.get("/v1/oplog", job=job["job_id"]))["items"]
    by_person = [each["kind"] for each in entries if each["agent"] == "person:alice"]
    assert by_person == ["ScheduleJob", "AbortJob"]


async def test_a_failed_job_is_retried_as_a_new_one(signed_in: WatchedPage, fleet: Fleet) -> None:
    page, kind = signed_in.page, new_name("again")
    job = await add_failed_job(fleet, kind, "exit code 7")
    await signed_in.show(f"job/{job}", kind)
    await expect(page.get_by_role("main")).to_contain_text("exit code 7")
    await page.get_by_role("button", name="Retry", exact=True).click()
    await expect(page.get_by_text("Retried as a new job.")).to_be_visible()
    await expect(page.get_by_text("No worker or agent has taken it yet.")).to_be_visible()
    retries = [each for each in (await fleet.node.get("/v1/jobs", kind=kind))["items"] if each["retry_of"]]
    assert [each["retry_of"] for each in retries] == [job]
    assert page.url.endswith(f"/ui/job/{retries[0]['job_id']}")


async def test_a_job_is_followed_from_its_start_to_its_proof(signed_in: WatchedPage, fleet: Fleet) -> None:
    """Its attempts, its log and its outputs appear as they come; a person returns it to the queue between."""
    page, kind, agent, node = signed_in.page, new_name("followed"), CODERS[2], fleet.node
    (job,) = await schedule(node, {"kind": kind})
    await signed_in.show(f"job/{job}", kind)
    attempts = page.get_by_role("region", name="Attempts")
    await expect(attempts).to_contain_text("No worker or agent has taken it yet.")
    _, token = await take(node, kind, agent)
    await expect(attempts.get_by_role("listitem").filter(has_text=agent)).to_contain_text("running")
    await node.send(f"/v1/jobs/{job}/log", {"claim_token": token, "text": "step one\n"}, agent=agent)
    await expect(page.get_by_role("log")).to_contain_text("step one")

    await page.get_by_role("button", name="Yield").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Reason").fill("another one first")
    await dialog.get_by_role("button", name="Yield").click()
    await expect(attempts).to_contain_text("yielded")
    _, token = await take(node, kind, agent)
    await node.send(f"/v1/jobs/{job}/log", {"claim_token": token, "text": "step two\n"}, agent=agent)
    await report(node, job, token, agent, "succeeded", result={"lines": 3})
    await expect(page.get_by_role("log")).to_contain_text("step two")
    await expect(attempts.get_by_role("listitem").filter(has_text=agent)).to_have_count(2)
    await expect(page.get_by_role("region", name="Proof")).to_contain_text("verified")
    await expect(page.get_by_role("region", name="Outputs")).to_contain_text('"lines": 3')
    async with page.expect_download() as downloading:
        await page.get_by_role("button", name="Download result").click()
    path = await (await downloading.value).path()
    assert path.read_bytes() == b'{"lines":3}'


async def test_the_steps_of_a_job_are_in_its_timeline_as_they_are_stored(
    signed_in: WatchedPage, fleet: Fleet
) -> None:
    kind, is_seen, calls = new_name("stepped"), asyncio.Event(), list[int]()

    def flaky() -> None:
        calls.append(1)
        if len(calls) != 2:
            raise RuntimeError("<i>no</i>")

    async def handle(context: JobContext) -> None:
        await context.step("<b>fetch</b>", flaky, retries=1, backoff="1ms")
        await is_seen.wait()
        await context.gather(*(context.step("part", int) for _ in range(99)))
        await context.step("send", flaky, retries=0)

    async with stepping(fleet, kind, handle) as job:
        await signed_in.show(f"job/{job}", kind)
        rows = signed_in.page.get_by_role("region", name="Attempts").get_by_role("listitem")
        await expect(rows.filter(has_text="<b>fetch</b>")).to_contain_text("call, attempt 1, 1 failed")
        is_seen.set()
        await expect(rows.filter(has_text="part")).to_have_count(99)
        more = signed_in.page.get_by_role("button", name="More steps")
        await more.click()
        await expect(rows.filter(has_text="send")).to_contain_text("RuntimeError: <i>no</i>")
        await expect(more).to_have_count(0)


@pytest.mark.parametrize(
    ("schema", "given"),
    [(None, ("Otto", "Otto")), ({"type": "boolean"}, ("Yes", True)), ({"type": "integer"}, ("12", 12))],
    ids=["text", "yes or no", "number"],
)
async def test_a_question_is_answered_on_the_page_of_its_job(
    signed_in: WatchedPage, fleet: Fleet, schema: Any, given: tuple[str, Any]
) -> None:
    page, kind, (text, answer) = signed_in.page, new_name("asks"), given
    await schedule(fleet.node, {"kind": kind})
    job, token = await take(fleet.node, kind, CODERS[2])
    question = {"text": "Which one?", **({"schema": schema} if schema else {})}
    await report(fleet.node, job, token, CODERS[2], "needs_input", question=question)
    await signed_in.show(f"job/{job}", kind)
    asked = page.get_by_role("region", name="It waits for an answer")
    if text == "Yes":
        await asked.get_by_role("button", name="Yes").click()
    else:
        await asked.get_by_role("textbox").fill(text)
        await asked.get_by_role("button", name="Answer").click()
    await expect(page.get_by_role("main")).to_contain_text("it has its answer")
    await expect(asked).to_have_count(0)
    (entry,) = (await fleet.node.get("/v1/oplog", kind="AnswerJob", job=job))["items"]
    assert (entry["payload"]["answer"], entry["agent"]) == (answer, "person:alice")


async def test_selected_jobs_alone_are_aborted(signed_in: WatchedPage, fleet: Fleet) -> None:
    page, kind = signed_in.page, new_name("selected")
    jobs = await schedule(fleet.node, *({"kind": kind, "payload": {"n": number}} for number in range(3)))
    await signed_in.show(f"jobs?kind={kind}", "Jobs")
    for job in jobs[:2]:
        await page.get_by_role("checkbox", name=f"Select {kind} {job[:8]}").check()
    await page.get_by_role("button", name="Abort 2").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Reason").fill("two are enough")
    await dialog.get_by_role("button", name="Abort 2").click()
    await expect(page.get_by_text("Aborted 2 jobs.")).to_be_visible()
    states = {
        each["job_id"]: each["state"] for each in (await fleet.node.get("/v1/jobs", kind=kind))["items"]
    }
    assert [states[job] for job in jobs] == ["aborted", "aborted", "pending"]


async def test_what_is_typed_into_a_filter_stays_while_the_list_changes(
    signed_in: WatchedPage, fleet: Fleet
) -> None:
    page, kind = signed_in.page, new_name("typed")
    await signed_in.show("jobs", "Jobs")
    field = page.get_by_label("Kind")
    await field.press_sequentially(f"{kind}*")
    for number in range(2):
        await schedule(fleet.node, {"kind": f"{kind}.{number}"})
        row = page.get_by_role("table", name="Jobs").get_by_role("row").filter(has_text=f"{kind}.{number}")
        await row.wait_for()
        await expect(field).to_have_value(f"{kind}*")
        await expect(field).to_be_focused()
    await expect(page.locator("[data-row]")).to_have_count(2)
    assert f"kind={kind}*" in page.url.replace("%2A", "*")
