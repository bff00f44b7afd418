"""The screens of the fleet and of an agent: what each works on, and draining and removing nodes."""

from __future__ import annotations

from http import HTTPStatus

from playwright.async_api import expect

from tests.support.console.watched_page import WatchedPage
from tools.fleet.fleet import CODERS, SECOND, Fleet
from tools.fleet.node_process import settings_of
from vox_mesh import Mesh, load_settings


async def test_person_drains_a_worker_and_lets_it_claim_again(fleet: Fleet, signed_in: WatchedPage) -> None:
    """Its state changes on the screen without a reload, and the op log names the person."""
    page = signed_in.page
    await signed_in.show("fleet", "Fleet")
    worker = page.get_by_role("table", name="Nodes").get_by_role("row").filter(has_text=SECOND)
    await worker.get_by_role("button", name=f"Drain {SECOND}").click()
    await page.get_by_role("dialog").get_by_role("button", name="Drain the node").click()
    await expect(worker).to_contain_text("draining")
    (drained,) = [each for each in (await fleet.node.get("/v1/workers"))["items"] if each["draining"]]
    assert drained["node_id"] == SECOND

    await worker.get_by_role("button", name=f"Undrain {SECOND}").click()
    await expect(worker).to_contain_text("alive")
    for kind in ("DrainNode", "UndrainNode"):
        entry = (await fleet.node.get("/v1/oplog", kind=kind, limit=500))["items"][-1]
        assert (entry["agent"], entry["accepted"]) == ("person:alice", True)


async def test_person_removes_a_node_that_has_left(fleet: Fleet, signed_in: WatchedPage) -> None:
    """A live node has no such button."""
    page, name = signed_in.page, "south"
    async with Mesh.open(load_settings(**settings_of(fleet.folder, name))):
        pass
    await signed_in.show(f"fleet?node={name}", "Fleet")
    row = page.get_by_role("table", name="Nodes").get_by_role("row").filter(has_text=name)
    await expect(row).to_contain_text("left")
    await row.get_by_role("button", name=f"Remove {name}").click()
    await page.get_by_role("dialog").get_by_role("button", name="Remove the node").click()
    await expect(page.get_by_text("No node matches")).to_be_visible()
    assert (await fleet.node.ask("GET", f"/v1/nodes/{name}")).status_code == HTTPStatus.NOT_FOUND
    await page.get_by_role("button", name="Show all").click()
    await expect(page.get_by_role("button", name=f"Remove {fleet.node.name}")).to_have_count(0)


async def test_agent_is_shown_with_its_work_locks_mail_and_spending(
    fleet: Fleet, signed_in: WatchedPage
) -> None:
    """The fleet links to each agent; what the agent does while its page is open appears there."""
    page, agent = signed_in.page, CODERS[1]
    await signed_in.show("fleet?find=coder", "Fleet")
    agents = page.get_by_role("table", name="Agents")
    row = agents.get_by_role("row").filter(has_text=agent)
    for text in ("mail", "test.browser", "USD"):
        await expect(row).to_contain_text(text)
    await expect(agents.get_by_role("row").filter(has_text="planner")).to_have_count(0)

    await row.get_by_role("link", name=agent).click()
    await page.get_by_role("heading", level=1, name=agent).wait_for()
    main = page.get_by_role("main")
    for text in ("template:receipt", "test.browser", "haiku", "20.00 USD", "not acknowledged", "ClaimWork"):
        await expect(main).to_contain_text(text)
    await fleet.node.send("/v1/locks", {"keys": ["file:src/new.py"], "agent": agent, "ttl": "1h"})
    await expect(main).to_contain_text("file:src/new.py")
    await main.get_by_role("link", name="Write to it").click()
    await expect(page.get_by_role("combobox", name="To An agent")).to_have_value(agent)


async def test_agent_that_has_not_acted_can_still_be_written_to(signed_in: WatchedPage) -> None:
    """A link to an agent of which nothing is known says so."""
    signed_in.allow_refusal(HTTPStatus.NOT_FOUND, "/v1/agents/new-agent")
    await signed_in.show("agent/new-agent", "new-agent")
    await expect(signed_in.page.get_by_text("has not acted within a month")).to_be_visible()
    await expect(signed_in.page.get_by_role("link", name="Write to it")).to_be_visible()
