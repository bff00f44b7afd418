"""The log: filters, what led to an entry, and whether each is as it was written."""

from __future__ import annotations

from playwright.async_api import expect

from tests.support.console.additions import add_failed_job, new_name, opened
from tests.support.console.watched_page import WatchedPage
from tools.fleet.fleet import Fleet
from vox_mesh.store.script import Script, Statement


async def test_entries_are_filtered_opened_and_traced(signed_in: WatchedPage, fleet: Fleet) -> None:
    page, kind = signed_in.page, new_name("traced")
    job = await add_failed_job(fleet, kind)
    await signed_in.show("log", "Log")
    await page.get_by_label("Job").fill(job)
    rows = page.get_by_role("table", name="Entries").locator("[data-row]")
    await expect(rows).to_have_count(4)
    await rows.filter(has_text="CompleteJob").get_by_role("link").first.click()
    entry = page.get_by_role("region", name="Entry")
    await expect(entry).to_contain_text("as it was written")
    await expect(entry.get_by_role("listitem")).to_contain_text(["StartWork"])
    await entry.get_by_role("button", name="Close").click()
    await expect(entry).to_have_count(0)


async def test_an_entry_that_was_changed_is_shown_as_such(signed_in: WatchedPage, fleet: Fleet) -> None:
    page = signed_in.page
    job = await add_failed_job(fleet, new_name("forged"))
    entry = (await fleet.node.get("/v1/oplog", job=job))["items"][0]
    await signed_in.show("log", "Log")
    async with opened(fleet) as mesh:
        change = "UPDATE agent_oplog SET payload = replace(payload, ?, ?) WHERE op_id = ?"
        await mesh.store.write(Script(Statement(change, ("forged", "forger", entry["op_id"]))))
        await page.get_by_role("button", name="Verify the log").click()
        await expect(page.get_by_text("1 broken")).to_be_visible()
        await signed_in.show(f"log?op={entry['op_id']}", "Log")
        await expect(page.get_by_role("region", name="Entry")).to_contain_text("not as it was written")
        await mesh.store.write(Script(Statement(change, ("forger", "forged", entry["op_id"]))))
    await page.get_by_role("button", name="Verify the log").click()
    await expect(page.get_by_text("entries as they were written")).to_be_visible()
