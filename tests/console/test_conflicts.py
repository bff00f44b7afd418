"""The screen of conflicts: three sides by column, one decision, also when two people decide at once."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from playwright.async_api import Page, expect

from tests.console.conftest import OpenPage
from tests.support.console.additions import add_conflict, opened, row_of
from tests.support.console.keyboard import tab_to
from tests.support.console.watched_page import WatchedPage
from tests.support.oplog.rivals import delete
from tools.fleet.fleet import Fleet


def side_of(page: Page, column: str, side: str) -> Any:
    """Return the choice of a side for a column."""
    return page.get_by_role("group", name=column).get_by_role("radio", name=side)


async def test_a_conflict_is_merged_by_column_with_the_keyboard(signed_in: WatchedPage, fleet: Fleet) -> None:
    conflict = await add_conflict(fleet, "use the <b>blue</b> pool")
    page = signed_in.page
    await signed_in.show("conflicts", "Conflicts")
    await page.get_by_role("link", name=conflict.name).click()
    group = page.get_by_role("group", name="content")
    await expect(group).to_contain_text("both changed it")
    await expect(group).to_contain_text("use the <b>blue</b> pool after 18:00")
    await expect(side_of(page, "tags", "Left")).to_be_checked()
    await expect(side_of(page, "importance", "Right")).to_be_checked()

    await tab_to(page, "Reason")
    await page.keyboard.type("both are right")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_have_text("Choose a value for content.")
    await page.reload()
    await tab_to(page, "content Base")
    await page.keyboard.press("ArrowDown")
    await expect(side_of(page, "content", "Left")).to_be_checked()
    await tab_to(page, "importance Another number for importance")
    await page.keyboard.type("9007199254740993")
    await expect(side_of(page, "importance", "Another number")).to_be_checked()
    await tab_to(page, "Reason")
    await page.keyboard.type("both are right")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="You chose values by column")).to_be_visible()
    await expect(page.get_by_role("status").filter(has_text="You chose")).to_contain_text("9007199254740993")
    row = await row_of(fleet, conflict.name)
    assert (row["content"], row["tags"], row["importance"]) == (
        *("use the <b>blue</b> pool after 18:00", "ops, night", 9007199254740993),
    )
    (*_, entry) = (await fleet.node.get("/v1/oplog", kind="ResolveConflict"))["items"]
    payload = entry["payload"]
    assert (payload["conflict_id"], payload["reason"]) == (conflict.conflict_id, "both are right")
    assert payload["who"]["agent"] == "person:alice"


async def test_of_two_people_the_second_sees_who_was_first_and_writes_nothing(
    open_page: OpenPage, fleet: Fleet
) -> None:
    conflict = await add_conflict(fleet)
    alice, bob, carl = [await open_page(name) for name in ("alice", "bob", "carl")]
    # Carl's page does not hear of it, as if he clicked in the same moment.
    carl.tolerate("Failed to load resource|ERR_FAILED|request off origin: .*/livez$")
    await carl.page.route("**/v1/events", lambda route: route.abort())
    for each in (alice, bob, carl):
        await each.show(f"conflicts/{conflict.conflict_id}", "Conflict", is_loaded=True)
    await side_of(bob.page, "content", "Right").check()
    await carl.page.get_by_role("button", name="Right").click()
    await alice.page.get_by_role("button", name="Left", exact=True).click()
    await alice.page.get_by_role("textbox", name="Reason").fill("the night matters")
    await alice.page.get_by_role("button", name="Resolve").click()
    await expect(alice.page.get_by_role("heading", name="You took the left side")).to_be_visible()

    status = bob.page.get_by_role("status").filter(has_text="alice took the left side")
    await expect(status).to_contain_text("the night matters")
    await expect(status).to_contain_text("Nothing of your choice was written")
    await expect(bob.page.get_by_role("button", name="Resolve")).to_have_count(0)

    await carl.page.get_by_role("button", name="Resolve").click()
    status = carl.page.get_by_role("status").filter(has_text="alice took the left side")
    await expect(status).to_contain_text("Nothing of your choice was written")
    assert (await row_of(fleet, conflict.name))["content"] == "use the blue pool after 18:00"
    shown = await fleet.node.get(f"/v1/conflicts/{conflict.conflict_id}")
    assert (shown["resolution"], shown["resolved_agent"]) == ("left", "person:alice")


async def test_a_row_that_has_changed_since_is_shown_before_it_is_written(
    signed_in: WatchedPage, fleet: Fleet
) -> None:
    conflict = await add_conflict(fleet)
    page = signed_in.page
    signed_in.allow_refusal(HTTPStatus.CONFLICT, f"/v1/conflicts/{conflict.conflict_id}/resolve")
    await signed_in.show(f"conflicts/{conflict.conflict_id}", "Conflict")
    async with opened(fleet) as mesh:
        key = {"memory_key": conflict.name}
        await mesh.occ.write("memories", key, {"tags": "moved"}, await mesh.occ.read("memories", key))
    await side_of(page, "content", "Left").check()
    await page.get_by_role("button", name="Resolve").click()
    await expect(page.get_by_role("alert")).to_contain_text("The row has changed since.")
    await expect(page.get_by_role("group", name="tags")).to_contain_text("moved")
    await side_of(page, "tags", "Right").check()
    await page.get_by_role("button", name="Resolve").click()
    await expect(page.get_by_role("heading", name="You chose values by column")).to_be_visible()
    row = await row_of(fleet, conflict.name)
    assert (row["content"], row["tags"]) == ("use the blue pool after 18:00", "moved")


async def test_a_row_that_was_deleted_is_written_again_or_left(signed_in: WatchedPage, fleet: Fleet) -> None:
    conflict = await add_conflict(fleet)
    page = signed_in.page
    signed_in.allow_refusal(HTTPStatus.CONFLICT, f"/v1/conflicts/{conflict.conflict_id}/resolve")
    await signed_in.show(f"conflicts/{conflict.conflict_id}", "Conflict")
    async with opened(fleet) as mesh:
        await delete(mesh, conflict.name)
    await page.get_by_role("button", name="Left", exact=True).click()
    await page.get_by_role("button", name="Resolve").click()
    await expect(page.get_by_role("alert")).to_contain_text("which is deleted now")
    await expect(page.get_by_role("button", name="Leave it deleted")).to_be_visible()
    await page.get_by_role("button", name="Write the row again").click()
    await expect(page.get_by_role("heading", name="You took the left side")).to_be_visible()
    assert (await row_of(fleet, conflict.name))["content"] == "use the blue pool after 18:00"
