"""Crons: the times that an expression names, and jobs that come once for each, no matter who is first."""

from __future__ import annotations

import asyncio
import logging
import zoneinfo
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import orjson
import pytest

from tests.jobs.test_maintenance import keep
from tests.support.jobs.firings import assert_scheduled_once, fire_around
from tests.support.jobs.jobs_in_hand import ops
from tests.support.messages.messaging import NodeGroup, write
from tests.support.oplog.authoring import RestartableNodes
from vox_mesh import Mesh
from vox_mesh.errors import BadManifest, BadValue, NotKnown, Refused
from vox_mesh.jobs.scheduling.cron_ops import adding, adopting, removing
from vox_mesh.jobs.scheduling.crons import FIRED, CronJob, Crons
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import SCHEDULE, Job
from vox_mesh.model.jobs.scheduling.cron import NICKNAMES, Cron, iso, zone_named
from vox_mesh.node import MeshNode
from vox_mesh.store import Script

_HOUR_MS = 3_600_000
BERLIN = "Europe/Berlin"
TIDY = Manifest.of(kind="tidy", payload={"depth": 1})


def ms(text: str) -> int:
    """An instant."""
    return round(datetime.fromisoformat(text).timestamp() * 1_000)


def times(expression: str, timezone: str, start: str, count: int) -> list[str]:
    """The times that follow an instant."""
    cron, at_ms, found = Cron(expression, timezone), ms(start), []
    for _ in range(count):
        at_ms = cron.after(at_ms)
        found.append(iso(at_ms).removeprefix("2026-"))
    return found


def crons_of(mesh: Mesh) -> Crons:
    """The crons as a node has them."""
    return Crons(mesh.store, mesh.jobs, mesh.clock, lambda: mesh.rhythm)


async def adopt(owner: Mesh, name: str) -> CronJob:
    """Have a cron count as one from before there were ops, which may have missed its latest time."""
    (cron,) = [each for each in await crons_of(owner).listed() if each.name == name]
    await owner.store.write(Script(op=adopting({name: cron.definition})))
    return cron


async def come(owner: Mesh, name: str, late_ms: int = 0) -> int:
    """Have the latest time of a cron come, and perhaps others before it; return the latest."""
    cron = await adopt(owner, name)
    due_ms = Cron(cron.expression, cron.timezone).latest(await owner.nodes.now_ms())
    sql = "UPDATE job_crons SET next_ms = ?3 WHERE scope_id = ?1 AND repository_id = ?2 AND name = ?4"
    await write(owner, sql, due_ms - late_ms, name)
    await owner.store.synced()
    return due_ms


async def the_cron(mesh: Mesh) -> CronJob:
    """The only cron there is."""
    await mesh.store.synced()
    (cron,) = await crons_of(mesh).listed()
    return cron


async def come_and_gone(mesh: Mesh) -> list[Job]:
    """The jobs that were scheduled."""
    await mesh.store.synced()
    return await mesh.jobs.queries.listed()


# --- times ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "start", "expected"),
    [
        # 02:30 is not there on the 29th, when clocks go from 02:00 to 03:00: it comes as soon as it can.
        ("30 2 * * *", "2026-03-28T00:00Z", ["03-28T01:30:00Z", "03-29T01:00:00Z", "03-30T00:30:00Z"]),
        # On the 25th of October it is there twice, and comes once.
        ("30 2 * * *", "2026-10-24T12:00Z", ["10-25T00:30:00Z", "10-26T01:30:00Z"]),
        # Between its two times it does not come again.
        ("30 2 * * *", "2026-10-25T00:45Z", ["10-26T01:30:00Z"]),
        ("30 2 * * *", "2026-10-25T01:10Z", ["10-26T01:30:00Z"]),
        # What comes every so often goes on by the time that passes.
        ("*/30 * * * *", "2026-03-29T00:40Z", ["03-29T01:00:00Z", "03-29T01:30:00Z"]),
        ("*/30 * * * *", "2026-10-25T00:10Z", ["10-25T00:30:00Z", "10-25T01:00:00Z", "10-25T01:30:00Z"]),
        ("0 8 * * MON-FRI", "2026-03-27T12:00Z", ["03-30T06:00:00Z"]),
    ],
)
def test_times_around_the_change_of_clocks(expression: str, start: str, expected: list[str]) -> None:
    assert times(expression, BERLIN, start, len(expected)) == expected


@pytest.mark.parametrize(
    "expression", ["30 2 * * *", "*/30 * * * *", "0 */3 * * *", "59 23 * * *", "0 0 1 * *"]
)
@pytest.mark.parametrize("timezone", ["UTC", BERLIN, "America/New_York"])
def test_the_latest_time_is_the_last_of_the_ones_that_come_one_after_the_other(
    expression: str, timezone: str
) -> None:
    cron = Cron(expression, timezone)
    for change in ("2026-03-08T07:00Z", "2026-03-29T01:00Z", "2026-10-25T01:00Z", "2026-11-01T06:00Z"):
        for minutes in range(-180, 181, 15):
            now_ms = ms(change) + minutes * 60_000 + 1
            latest = cron.latest(now_ms)
            assert latest <= now_ms < cron.after(now_ms) == cron.after(latest), (change, minutes)


def test_a_time_that_is_now_has_come_and_the_next_is_later() -> None:
    now_ms = ms("2026-05-01T12:00Z")
    assert Cron("@hourly").latest(now_ms) == now_ms
    assert Cron("@hourly").latest(now_ms - 1) == now_ms - _HOUR_MS
    assert Cron("@hourly").after(now_ms) == now_ms + _HOUR_MS
    assert Cron("@hourly").after(now_ms - 1) == now_ms


def test_times_with_names_are_times() -> None:
    assert {Cron(name).after(0) for name in NICKNAMES} >= {Cron("0 0 1 1 *").after(0), _HOUR_MS}
    assert Cron(" @Hourly ").after(0) == _HOUR_MS


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("", "has 0 fields, not 5"),
        ("* * * *", "has 4 fields, not 5"),
        ("* * * * * *", "has 6 fields, not 5"),
        ("60 * * * *", "'60' is no minute; 0 to 59"),
        ("* 24 * * *", "'24' is no hour; 0 to 23"),
        ("* * 0 * *", "'0' is no day of the month"),
        ("0 0 30 2 *", "'30' is no day of the month"),
        ("* * * 13 *", "'13' is no month"),
        ("* * * * 8", "'8' is no day of the week"),
        ("*/0 * * * *", "'*/0' is no minute"),
        ("5-1 * * * *", "'5-1' is no minute"),
        ("1,, * * * *", "'1,,' is no minute"),
        ("\u0661 * * * *", "is no minute"),
        ("0 0 * * MON#6", "'MON#6' is no day of the week"),
        ("@reboot", "'@reboot' is no schedule; these have names: @yearly"),
        ("1" * 5_000 + " * * * *", "a schedule of 5008 characters is too long"),
        ("0 0 29 2 * * # comment", "has 8 fields"),
    ],
)
def test_a_faulty_expression_is_explained_in_one_line(expression: str, fault: str) -> None:
    with pytest.raises(BadValue) as refused:
        Cron(expression)
    assert fault in refused.value.line
    assert "\n" not in refused.value.line


@pytest.mark.parametrize(
    "timezone", ["", "Nowhere/Land", "Europe", "../UTC", "/etc/passwd", "localtime", "a\0b"]
)
def test_a_time_zone_that_is_none_is_refused(timezone: str) -> None:
    with pytest.raises(BadValue, match="is no time zone that this machine knows"):
        Cron("@daily", timezone)


@pytest.fixture
def no_zones() -> Iterator[None]:
    """A machine without data of time zones."""
    path = zoneinfo.TZPATH
    try:
        zoneinfo.reset_tzpath(to=())
        zoneinfo.ZoneInfo.clear_cache()
        zone_named.cache_clear()
        yield
    finally:
        zoneinfo.reset_tzpath(to=path)


@pytest.mark.usefixtures("no_zones")
def test_utc_is_known_on_every_machine() -> None:
    assert Cron("@hourly", "UTC").after(0) == Cron("@hourly", "Etc/UTC").after(0) == _HOUR_MS


# --- crons ----------------------------------------------------------------------------------------


async def test_a_cron_is_added_listed_and_removed(node: MeshNode) -> None:
    crons = crons_of(node)
    before_ms = await node.nodes.now_ms()
    added = await crons.add("tidy", "0  3 * * *", TIDY, BERLIN)
    assert added.expression == "0 3 * * *"
    assert before_ms < added.next_ms <= before_ms + 25 * _HOUR_MS
    assert await crons.add("tidy", "0 3 * * *", TIDY, BERLIN) == added == await the_cron(node)
    assert await crons.add("tidy", "0 3 * * *", TIDY.model_dump(exclude_unset=True), BERLIN) == added
    with pytest.raises(BadValue, match="cron tidy exists already"):
        await crons.add("tidy", "0 4 * * *", TIDY, BERLIN)
    await crons.remove("tidy")
    await node.store.synced()
    assert await crons.listed() == []
    with pytest.raises(NotKnown, match="there is no cron tidy"):
        await crons.remove("tidy")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ulid", "01ARZ3NDEKTSV4RRFFQ69G5FAV"),
        ("nonce", "x"),
        ("after", ["a" * 64]),
        ("run_at", "2030-01-31T08:00:00Z"),
    ],
)
async def test_what_makes_sense_once_is_not_for_crons(local: MeshNode, field: str, value: Any) -> None:
    with pytest.raises(BadManifest, match=f"^{field}: is for one job only"):
        await crons_of(local).add("tidy", "@daily", Manifest.of(kind="tidy", **{field: value}))


@pytest.mark.parametrize("name", ["", "a b", "a@b", "-a", "x" * 65, "a\n"])
async def test_a_cron_has_a_plain_name(local: MeshNode, name: str) -> None:
    with pytest.raises(BadValue, match="a cron's name must be"):
        await crons_of(local).add(name, "@daily", TIDY)


async def test_a_cron_that_is_due_schedules_its_job(any_node: MeshNode) -> None:
    command = Manifest.of(
        command=["/bin/true"],
        timeout=5,
        priority=3,
        max_attempts=2,
        backoff=timedelta(seconds=2),
        lease=timedelta(seconds=30),
    )
    await crons_of(any_node).add("true", "0 0 1 1 *", command)
    due_ms = await come(any_node, "true")
    await keep(any_node)
    await keep(any_node)
    (job,) = await come_and_gone(any_node)
    nonce = f"true@{iso(due_ms)}"
    assert job.core == {"command": ["/bin/true"], "args": [], "timeout": 5, "nonce": nonce}
    assert (job.kind, job.priority, job.max_attempts) == ("exec", 3, 2)
    assert (job.backoff_ms, job.lease_ms) == (2_000, 30_000)
    cron = await the_cron(any_node)
    assert (cron.last_ms, cron.last_job) == (due_ms, job.job_id)
    assert cron.next_ms == Cron(cron.expression, cron.timezone).after(due_ms)


async def test_times_that_no_one_fired_are_fired_once_as_the_latest(node: MeshNode) -> None:
    await crons_of(node).add("hourly", "@hourly", TIDY)
    await come(node, "hourly", late_ms=100 * _HOUR_MS)
    await keep(node)
    await keep(node)
    (job,) = await come_and_gone(node)
    cron = await the_cron(node)
    assert cron.last_ms == cron.next_ms - _HOUR_MS
    assert job.core["nonce"] == f"hourly@{iso(cron.last_ms)}"


async def test_a_time_that_has_not_come_is_not_fired(node: MeshNode) -> None:
    await crons_of(node).add("yearly", "@yearly", TIDY)
    await keep(node)
    assert await crons_of(node).fire_due() == []
    assert await come_and_gone(node) == []


async def test_each_time_is_fired_once_by_three_nodes_of_which_one_leaves(crowd: NodeGroup) -> None:
    nodes = [await crowd.node(name) for name in ("one", "two", "three")]
    for time in (1, 2, 3):
        await crons_of(nodes[0]).add(f"yearly-{time}", "@yearly", TIDY)
    for time in (1, 2, 3):
        if time == 3:
            nodes.insert(0, await crowd.node("one"))
        due_ms = await come(nodes[0], f"yearly-{time}")
        if time == 2:
            await nodes.pop(0).close()
        await asyncio.gather(*(keep(node) for node in nodes))
        newest, *others = await come_and_gone(nodes[0])
        assert newest.core["nonce"] == f"yearly-{time}@{iso(due_ms)}"
        assert len(others) == time - 1
    await assert_scheduled_once(nodes[0], 3, FIRED)


async def test_a_firing_whose_node_was_killed_under_way_counts_for_nothing_when_it_comes_late(
    there: RestartableNodes,
) -> None:
    async with there.node("first") as first, there.node("second") as second:
        await first.run_once()
        await second.run_once()
        await crons_of(first).add("hourly", "@hourly", TIDY)
        await come(first, "hourly")
        job_id = await fire_around(there, crons_of(first).fire_due(), crons_of(second).fire_due())
        assert [entry.node_id for entry in await ops(second, SCHEDULE)] == ["second"]
        assert [job.job_id for job in await come_and_gone(second)] == [job_id]
        assert (await the_cron(second)).last_job == job_id
        there.gate.release()


async def test_one_that_came_back_as_another_is_not_fired_as_it_was(local: MeshNode) -> None:
    crons = crons_of(local)
    await crons.add("hourly", "@hourly", TIDY)
    due_ms = await come(local, "hourly")
    old = await the_cron(local)
    await write(local, "UPDATE job_crons SET added_ms = 1 WHERE scope_id = ?1 AND repository_id = ?2")
    _, script = crons._prepare_firing(old, due_ms)
    with pytest.raises(Refused, match=FIRED):
        await local.store.write(script)
    assert await come_and_gone(local) == []


async def test_one_whose_time_zone_is_not_known_here_is_left_to_others(
    local: MeshNode, caplog: pytest.LogCaptureFixture
) -> None:
    crons = crons_of(local)
    for name in ("here", "there"):
        await crons.add(name, "@hourly", TIDY)
        await come(local, name, late_ms=1_000)
    elsewhere = "UPDATE job_crons SET timezone = ?3 WHERE scope_id = ?1 AND repository_id = ?2 AND name = ?4"
    await write(local, elsewhere, "Nowhere/Land", "there")
    (there,) = [cron for cron in await crons.listed() if cron.name == "there"]
    for op in (removing("there"), adding("there", there.definition)):
        await local.store.write(Script(op=op))
    with caplog.at_level(logging.WARNING):
        fired = await crons.fire_due() + await crons.fire_due()
    jobs = [orjson.loads(job.manifest)["nonce"].split("@")[0] for job in await come_and_gone(local)]
    assert (len(fired), jobs) == (1, ["here"])
    (reported,) = caplog.messages
    assert reported.startswith("cron left to other nodes: cron=there: 'Nowhere/Land' is no time zone")
