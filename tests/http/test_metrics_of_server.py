"""Metrics of a node on a real server: what they cost that, what they tell without it, and their page."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.messages.relaying import TOKEN
from tests.support.nodes.scraping import Scrape, metrics_of, scraped, served
from tests.support.replica.standing import until, until_in_touch
from tests.support.rhythm.grounds import BAR_MS, BEAT_MS, MovableClock, player
from tests.support.store.counting import HELLO, counting
from tools.homes import MESH, MESH_REPLICA, HomeCase
from tools.sqld import Server
from vox_mesh import Mesh, Script, Statement
from vox_mesh.errors import CircuitOpen, DatabaseUnavailable
from vox_mesh.model.rhythm.budgets import Budget

_PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md"
_ROW: Final = re.compile(r"^\| `(vox_\w+)` \| (\w+) \|([^|]*)\| (?:node|mesh) \| \S.* \|$", re.MULTILINE)
_FRAMES: Final = "/wal_log.ReplicationLog/LogEntries"
_LINES: Final = 2  # to write and to read, each with a hello and the opening of a stream
_SHORT_S: Final = 0.2
_FAULTS: Final = 5
_OF_DATABASE: Final = (
    "vox_jobs",
    "vox_nodes",
    "vox_heartbeat_age_seconds",
    "vox_locks_held",
    "vox_messages_dead",
)


def described() -> dict[str, tuple[str, set[str]]]:
    """The metrics that the page has, each with its type and labels."""
    rows = _ROW.findall(_PAGE.read_text())
    table = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert len(table) == len(rows), "a metric is described twice"
    return table


def document(scrape: Scrape) -> dict[str, tuple[str, set[str]]]:
    """The metrics of the mesh that a node tells, each with its type and labels."""
    types = re.findall(r"^# TYPE (vox_\w+) (\w+)$", scrape.text, re.MULTILINE)
    labels = {
        family.name: set().union(*(sample.labels.keys() - {"le"} for sample in family.samples))
        for family in scrape.families
    }
    return {name: (kind, labels[name.removesuffix("_total")]) for name, kind in types}


async def test_the_page_describes_all_that_a_node_tells_and_nothing_else(
    tmp_path: Path, shared_server: Server
) -> None:
    settings = MESH_REPLICA.settings(tmp_path, shared_server, tick="1h", backup_dir=tmp_path / "backups")
    async with Mesh.open(settings) as node:
        await node.jobs.schedule("work")
        await node.rhythm.budgets.set("agent:ada", Budget(max_bu=1))
        hand = MovableClock(node.rhythm.timeline.window_at(node.clock.now_ms).start_ms - BAR_MS)
        bar = player(node, hand)
        await bar.say("ada", "write", "done")
        hand.now_ms += BAR_MS + BEAT_MS
        await bar.bar_reporter.roll_up_due()
        await node.store.synced()
        node.store.faults.note("relay", KeyError("unexpected"))
        await node.retention.prune_all()
        await node.store.synced()
        async with served(metrics_of(node)) as client:
            client.headers["Authorization"] = f"Bearer {TOKEN}"
            await client.get("/metrics")
            now = Scrape((await client.get("/metrics")).text)
    empty = {family.name for family in now.families if not family.samples}
    of_others = {"vox_wal_bytes", "vox_wal_held_bytes", "vox_bar_utilisation_ratio"}
    of_others |= {"vox_archive_pass_age_seconds", "vox_archive_bytes", "vox_archive_segments"}
    of_others |= {"vox_archive_missing_segment"}
    assert empty == of_others, "these are of the file home, and of nodes with workers or archives"
    assert document(now) == {**described(), "vox_bar_utilisation_ratio": ("gauge", set())}
    assert now.get("vox_replica_state", state="in_touch") == 1
    assert now.get("vox_replica_lag_seconds") == 0
    assert now.get("vox_replica_start_overs_total") == 0
    assert now.get("vox_replica_fetched_bytes_total")
    assert now.get("vox_jobs", kind="work", state="pending") == 1
    if sys.platform == "linux":
        assert re.search(r"^process_open_fds \d", now.text, re.MULTILINE)


async def test_every_request_to_the_primary_is_counted(tmp_path: Path, shared_server: Server) -> None:
    async with counting(shared_server) as gate:
        settings = MESH_REPLICA.settings(tmp_path, shared_server, db_url=gate.url, tick="1h")
        async with Mesh.open(settings) as node:
            await node.jobs.schedule("work")
            await node.store.synced()
            await node.store.read("SELECT 1", fresh=True)
            metrics = metrics_of(node)
            document = (await scraped(metrics)).all("vox_primary_requests_total")
            assert all(document[what,] for what in ("write", "read", "hello", "frames"))
        counted = node.store.stats.requests
        assert counted["write"] + counted["read"] + counted["ping"] == gate.messages - 2 * _LINES
        assert counted["frames"] == gate.calls[_FRAMES]
        assert 0 <= counted["hello"] - gate.calls[HELLO] <= 1  # one may have been cut off on its way


@pytest.mark.parametrize(("case", "requests"), [(MESH, 1), (MESH_REPLICA, 0)], ids=str)
async def test_a_scrape_asks_the_primary_once_and_with_a_replica_never(
    tmp_path: Path, shared_server: Server, case: HomeCase, requests: int
) -> None:
    async with Mesh.open(case.settings(tmp_path, shared_server, tick="1h")) as node:
        await node.store.synced()
        metrics = metrics_of(node)
        counted = node.store.stats.requests
        before = counted["read"] + counted["write"]
        await scraped(metrics)
        assert counted["read"] + counted["write"] - before == requests


async def test_while_the_server_is_away_the_answer_has_what_the_process_knows(
    tmp_path: Path, server: Server
) -> None:
    settings = MESH_REPLICA.settings(tmp_path, server, tick="1h", db_max_stale_ms=0, db_circuit_breaker=True)
    async with Mesh.open(settings) as node:
        metrics = metrics_of(node)
        await node.locks.acquire("a")
        await node.messages.send("bob", 1)
        await until_in_touch(node.store)
        server.kill()
        reads = (node.store.read("SELECT 1", fresh=True, timeout=_SHORT_S) for _ in range(_FAULTS))
        for failure in await asyncio.gather(*reads, return_exceptions=True):
            assert isinstance(failure, DatabaseUnavailable)
        with pytest.raises(CircuitOpen):
            await node.store.write(Script(Statement("DELETE FROM memories WHERE 0")))
        await node.messages.send("bob", 2)
        await until(node.store, lambda: not node.store.is_in_touch)
        away = await scraped(metrics)
        server.start()
    assert away.get("vox_circuit_state", state="open") == 1
    assert away.get("vox_circuit_state", state="closed") == 0
    assert away.get("vox_replica_state", state="out_of_touch") == 1
    assert away.get("vox_write_failures_total") == 1
    assert away.get("vox_spooled_scripts") == 1
    assert (away.get("vox_spooled_bytes") or 0) > 0
    assert away.get("vox_lock_wait_seconds_count") == 1
    assert away.get("vox_ready") == 1
    assert [name for name in _OF_DATABASE if away.all(name)] == []


async def test_a_node_that_began_without_its_server_answers(tmp_path: Path, server: Server) -> None:
    settings = MESH_REPLICA.settings(tmp_path, server, tick="1h")
    server.kill()
    async with Mesh.open(settings) as node:
        now = await scraped(metrics_of(node))
        assert now.get("vox_replica_lag_seconds") is None
        assert now.get("vox_clock_skew_seconds") is None
        assert now.all("vox_nodes") == {}
        assert now.get("vox_writes_total") == 0
