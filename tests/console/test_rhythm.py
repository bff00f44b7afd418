"""The rhythm: a person changes the tempo, and declares and clears an incident."""

from __future__ import annotations

from playwright.async_api import expect

from tests.support.console.additions import new_name
from tests.support.console.watched_page import WatchedPage
from tools.fleet.fleet import Fleet


async def test_a_person_clears_an_incident_and_declares_another(signed_in: WatchedPage, fleet: Fleet) -> None:
    page, reason = signed_in.page, new_name("incident")
    await signed_in.show("rhythm", "Rhythm")
    incident = page.get_by_role("status").filter(has_text="Incident")
    await incident.get_by_role("button", name="Clear it").click()
    await expect(incident).to_have_count(0)
    await page.get_by_role("button", name="Declare an incident").click()
    await page.get_by_role("dialog").get_by_label("Reason").fill(reason)
    await page.get_by_role("dialog").get_by_role("button", name="Declare it").click()
    await expect(incident).to_contain_text(reason)
    assert (await fleet.node.get("/v1/rhythm/policy"))["incident"]["reason"] == reason
    for kind in ("ClearIncident", "DeclareIncident"):
        entry = (await fleet.node.get("/v1/oplog", kind=kind))["items"][-1]
        assert entry["agent"] == "person:alice"


async def test_a_person_changes_the_tempo_for_all_nodes(signed_in: WatchedPage, fleet: Fleet) -> None:
    page = signed_in.page
    await signed_in.show("rhythm", "Rhythm")
    before = (await fleet.node.get("/v1/rhythm/policy"))["in_force"]["tempo_bpm"]
    await page.get_by_role("button", name="Change the tempo").click()
    field = page.get_by_role("dialog").get_by_label("Beats a minute")
    await expect(field).to_have_value(f"{before:g}")
    await field.fill(f"{before + 1:g}")
    await page.get_by_role("dialog").get_by_role("button", name="Announce it").click()
    await expect(page.get_by_role("region", name="This bar")).to_contain_text(
        f"{before + 1:g} beats a minute"
    )
    policy = await fleet.node.get("/v1/rhythm/policy")
    assert before + 1 in [
        policy["in_force"]["tempo_bpm"],
        *(each["tempo_bpm"] for each in policy["announced"]),
    ]
