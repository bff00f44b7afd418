"""What happens in the mesh appears on every screen that is open, without a reload."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import pytest
from playwright.async_api import expect

from tests.support.console.additions import (
    add_approval,
    add_conflict,
    add_failed_job,
    add_question,
    new_name,
    opened,
)
from tests.support.console.watched_page import WatchedPage
from tools.fleet.fleet import CODERS, Fleet, report, schedule, send_message, take

Change = Callable[[Fleet, str], Awaitable[Any]]


class Case(NamedTuple):
    """A screen, and a change that it must show. `{name}` is a new name, and so is the agent or the kind."""

    path: str
    title: str
    change: Change
    appears: str = "{name}"

    def __str__(self) -> str:
        return f"{self.path or 'needs'} {self.change.__name__.strip('_')}"


async def _question(fleet: Fleet, name: str) -> None:
    await add_question(fleet, f"Shall {name} go on?")


async def _approval(fleet: Fleet, name: str) -> None:
    await add_approval(fleet, name)


async def _failed_job(fleet: Fleet, name: str) -> None:
    await add_failed_job(fleet, name)


async def _overdue_message(fleet: Fleet, name: str) -> None:
    await send_message(fleet.node, "planner", name, "Please.", ack_within="1ms")


async def _status(fleet: Fleet, name: str) -> None:
    status = {"agent_id": name, "task_id": f"task of {name}", "state": "executing", "progress": 0.5}
    await fleet.node.send("/v1/rhythm/status", status)


async def _locked(fleet: Fleet, name: str) -> None:
    await fleet.node.send("/v1/locks", {"keys": [f"file:{name}.py"], "agent": name, "ttl": "1h"})


async def _lock_of_ben(fleet: Fleet, name: str) -> None:
    await fleet.node.send("/v1/locks", {"keys": [f"file:{name}.py"], "agent": CODERS[1], "ttl": "1h"})


async def _job(fleet: Fleet, name: str) -> None:
    await schedule(fleet.node, {"kind": name})


async def _job_after_another(fleet: Fleet, name: str) -> None:
    (first,) = await schedule(fleet.node, {"kind": f"{name}.first"})
    await schedule(fleet.node, {"kind": name, "after": [first]})


async def _progress(fleet: Fleet, name: str) -> None:
    job = await fleet.node.get(f"/v1/jobs/{fleet.ids['running']}")
    progress = {"claim_token": job["claim_token"], "fraction": 0.6, "message": name}
    await fleet.node.send(f"/v1/jobs/{job['job_id']}/progress", progress, agent=CODERS[0])


async def _log_line(fleet: Fleet, name: str) -> None:
    job = await fleet.node.get(f"/v1/jobs/{fleet.ids['running']}")
    line = {"claim_token": job["claim_token"], "text": f"{name}\n"}
    await fleet.node.send(f"/v1/jobs/{job['job_id']}/log", line, agent=CODERS[0])


async def _message(fleet: Fleet, name: str) -> None:
    await send_message(fleet.node, "planner", name, {"text": "Hello."})


async def _answer(fleet: Fleet, name: str) -> None:
    await send_message(fleet.node, "planner", CODERS[0], {"text": name}, thread="gift-cards")


async def _conflict(fleet: Fleet, name: str) -> None:
    await add_conflict(fleet, name=name)


async def _resolved_conflict(fleet: Fleet, name: str) -> None:
    async with opened(fleet) as mesh:
        await mesh.conflicts.resolve(fleet.ids["conflict_2"], take="right", reason=name)


async def _promise(fleet: Fleet, name: str) -> None:
    await fleet.node.send("/v1/rhythm/help", {"to": CODERS[1], "body": "Which one?", "agent": name})


async def _budget(fleet: Fleet, name: str) -> None:
    budget = {"subject": f"agent:{name}", "budget": {"max_tokens": 1000}}
    await fleet.node.send("/v1/budgets", budget, method="PUT")


async def _spending(fleet: Fleet, name: str) -> None:
    await schedule(fleet.node, {"kind": name})
    job, token = await take(fleet.node, name, name)
    usage = {"input_tokens": 100, "output_tokens": 10, "model": "haiku"}
    await report(fleet.node, job, token, name, "succeeded", usage=usage)


CASES: Final = (
    Case("", "Needs you", _question),
    Case("", "Needs you", _approval),
    Case("", "Needs you", _failed_job),
    Case("?kind=overdue_ack", "Needs you", _overdue_message),
    Case("fleet?find={name}", "Fleet", _status, "task of {name}"),
    Case("fleet?find={name}", "Fleet", _locked),
    Case("agent/coder-ben", CODERS[1], _lock_of_ben),
    Case("jobs", "Jobs", _job),
    Case("jobs?view=board&kind={name}", "Jobs", _job),
    Case("jobs?view=graph", "Jobs", _job_after_another),
    Case("job/{running}", "code.refactor", _progress),
    Case("job/{running}", "code.refactor", _log_line),
    Case("locks?agent={name}", "Locks", _locked, "file:{name}.py"),
    Case("messages", "Messages", _message),
    Case("messages/gift-cards", "Messages", _answer),
    Case("conflicts", "Conflicts", _conflict),
    Case("conflicts/{conflict_2}", "Conflict", _resolved_conflict),
    Case("rhythm", "Rhythm", _promise),
    Case("costs", "Costs", _budget),
    Case("costs", "Costs", _spending),
    Case("log?agent={name}", "Log", _spending, "CompleteJob"),
)


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_change_in_the_mesh_appears_on_an_open_screen(
    signed_in: WatchedPage, fleet: Fleet, case: Case
) -> None:
    page, name = signed_in.page, new_name("news")
    await signed_in.show(case.path.format(name=name, **fleet.ids), case.title)
    await page.locator("main").get_by_text("Loading…").first.wait_for(state="detached")
    news = page.locator("main").get_by_text(case.appears.format(name=name)).first
    await expect(news).to_have_count(0)
    await case.change(fleet, name)
    await expect(news).to_be_attached()


async def test_the_count_of_what_needs_a_person_is_on_every_screen(
    signed_in: WatchedPage, fleet: Fleet
) -> None:
    await signed_in.show("log", "Log")
    needs = signed_in.page.get_by_role("navigation", name="Screens").get_by_role("link", name="Needs you")
    before = sum((await fleet.node.get("/v1/attention"))["counts"].values())
    await expect(needs).to_contain_text(str(before))
    await add_question(fleet, "Is that all?")
    await expect(needs).to_contain_text(str(before + 1))


async def test_the_health_of_the_node_is_current(signed_in: WatchedPage, fleet: Fleet) -> None:
    page = signed_in.page
    await signed_in.show("health", "Health")
    writes = page.get_by_role("region", name="Database").get_by_text("since the start")
    before = await writes.inner_text()
    await schedule(fleet.node, {"kind": new_name("health")})
    await expect(writes).not_to_have_text(before)
