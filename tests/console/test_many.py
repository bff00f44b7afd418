"""Lists of any length: the page draws what can be seen, and reads more when it is scrolled."""

from __future__ import annotations

from typing import Final

from playwright.async_api import Page, expect

from tests.support.console.additions import add_dependent_jobs, new_name, opened
from tests.support.console.watched_page import WatchedPage
from tests.support.running.lengths import SOAK
from tools.fleet.fleet import LEFT, Fleet
from vox_mesh import Manifest
from vox_mesh.store.script import Script, Statement

JOBS: Final = 10_000 if SOAK else 1_000
NODES: Final = 1_000
BOXES: Final = 1_000 if SOAK else 200
_COLUMNS: Final = 10
_MOST_ROWS: Final = 60
"""Rows that a table draws at most in a window of this height."""

_MOST_ELEMENTS: Final = 3_000
_OTHERS: Final = (
    *(
        "scope_id",
        "repository_id",
        "agent_id",
        "incarnation",
        "beats",
        "last_seen_ms",
        "left_ms",
        "started_ms",
    ),
    *("tick_ms", "activity", "host", "pid", "version", "public_key", "kinds", "capacity", "load"),
    *("clock_distance_ms", "machine_id", "place"),
)
_ADD_NODES: Final = f"""
INSERT INTO mesh_heartbeats (node_id, {", ".join(_OTHERS)})
WITH RECURSIVE numbers (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers LIMIT ?3)
SELECT ?1 || number, {", ".join(_OTHERS)} FROM mesh_heartbeats, numbers WHERE node_id = ?2"""
"""Adds nodes that have left, as another has."""

_SCROLL: Final = """(table) => {
  table.scrollTop = table.scrollHeight;
  return table.querySelectorAll("[data-row]").length;
}"""


async def _assert_bounded(page: Page, label: str) -> None:
    rows = page.get_by_role("table", name=label).locator("[data-row]")
    await rows.first.wait_for()
    assert await rows.count() <= _MOST_ROWS
    assert await page.evaluate("document.querySelectorAll('*').length") <= _MOST_ELEMENTS


async def test_many_jobs_are_drawn_as_they_are_scrolled(signed_in: WatchedPage, fleet: Fleet) -> None:
    page, kind = signed_in.page, new_name("many")
    async with opened(fleet) as mesh:
        for start in range(0, JOBS, 500):
            numbers = range(start, start + 500)
            manifests = [Manifest.of(kind=kind, payload={"n": number}) for number in numbers]
            await mesh.jobs.schedule_all(manifests)
    await signed_in.show(f"jobs?kind={kind}", "Jobs")
    table = page.get_by_role("table", name="Jobs")
    await _assert_bounded(page, "Jobs")
    shown = table.locator("[data-row]").first
    for last in range(100, JOBS, 100):
        await table.evaluate(_SCROLL)
        await expect(table.locator(f"[data-row='{last}']")).to_be_attached()
        await _assert_bounded(page, "Jobs")
    await table.evaluate(_SCROLL)
    await expect(table.locator(f"[data-row='{JOBS - 1}']")).to_be_attached()
    await expect(shown).not_to_have_attribute("data-row", "0")
    await signed_in.show(f"jobs?kind={kind}&view=board", "Jobs")
    await expect(page.get_by_role("region", name="pending")).to_contain_text(f"{JOBS:,}")
    assert await page.locator(".jobs-card").count() <= _MOST_ROWS


async def test_many_nodes_are_drawn_as_they_are_scrolled(signed_in: WatchedPage, fleet: Fleet) -> None:
    page, name = signed_in.page, new_name("node")
    async with opened(fleet) as mesh:
        await mesh.store.write(Script(Statement(_ADD_NODES, (f"{name}.", LEFT, NODES))))
        try:
            await signed_in.show(f"fleet?find={name}", "Fleet")
            table = page.get_by_role("table", name="Nodes")
            await expect(table).to_have_attribute("aria-rowcount", str(NODES + 1))
            await _assert_bounded(page, "Nodes")
            await table.evaluate(_SCROLL)
            await expect(table.locator(f"[data-row='{NODES - 1}']")).to_be_attached()
            await _assert_bounded(page, "Nodes")
        finally:
            delete = Statement("DELETE FROM mesh_heartbeats WHERE node_id GLOB ?", (f"{name}.*",))
            await mesh.store.write(Script(delete))


async def test_many_dependent_jobs_are_drawn_as_a_graph(signed_in: WatchedPage, fleet: Fleet) -> None:
    """Every job that the node lays out has its box, which is a link to it."""
    page, kind = signed_in.page, new_name("graph")
    jobs = await add_dependent_jobs(fleet, kind, BOXES, width=_COLUMNS)
    try:
        await signed_in.show(f"job/{jobs[0]}", kind)
        boxes = page.get_by_role("group", name="Dependencies of this job").get_by_role("link")
        await expect(boxes).to_have_count(BOXES // _COLUMNS)
        await signed_in.show("jobs?view=graph", "Jobs")
        boxes = page.get_by_role("group", name="Dependencies of jobs").get_by_role("link")
        layout = await fleet.node.get("/v1/jobs/layout")
        await expect(boxes).to_have_count(len(layout["nodes"]))
        assert len(layout["nodes"]) >= BOXES
        addresses = await boxes.evaluate_all("all => all.map((each) => each.getAttribute('href'))")
        assert {f"/ui/job/{each}" for each in jobs} <= {*addresses}
    finally:
        async with opened(fleet) as mesh:
            await mesh.jobs.abort(*jobs, reason="drawn")
