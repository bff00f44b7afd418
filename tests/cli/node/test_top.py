"""`vox-mesh top` on a mesh at work: panels show what is there, and keys do what commands do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from textual.pilot import Pilot

from tests.support.messages.messaging import write
from tests.support.nodes.api_scene import approval
from tests.support.store.counting import counting
from tools.homes import MEMORY, MESH
from tools.pictures import LARGE, SMALL, Scene, Seen, scene
from tools.sqld import Server
from vox_mesh import Mesh, Settings
from vox_mesh.cli.top.feed import Feed
from vox_mesh.cli.top.running import fed
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.views.overview import MAX_ITEMS, OverviewReader, overview

_BUILDER: Final = "builder-1"
_HEARTBEATS: Final = "UPDATE mesh_heartbeats SET"
_EVIL: Final = "\x1b]0;pwned\x07\x1b[2J[bold red]x[/] \u202eevil" + "y" * 300


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Scene]:
    """A mesh with something of everything."""
    async with scene(tmp_path) as made:
        yield made


class View:
    """The view as a person in front of it sees it."""

    def __init__(self, app: Seen, pilot: Pilot[None]) -> None:
        self._app = app
        self._pilot = pilot

    @property
    def text(self) -> str:
        """All that is on the screen."""
        return self._app.text

    async def shows(self, *words: str) -> str:
        """Wait until all of these are on the screen; the screen."""
        try:
            await self._app.until(lambda: all(word in self.text for word in words))
        except TimeoutError:
            pytest.fail(f"{words} are not all in\n{self.text}")
        return self.text

    async def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        await self._pilot.press(*keys)

    async def find(self, panel: str, text: str) -> None:
        """Go to a panel, to the row with this text."""
        await self.press(panel, "home")
        for _ in range(20):
            table = self._app._focused
            assert table is not None
            line = table.selected
            if line is not None and any(text in cell for cell, _ in line.cells):
                return
            await self.press("down")
        pytest.fail(f"there is no {text} in\n{self.text}")


@asynccontextmanager
async def viewed(settings: Settings, size: tuple[int, int] = SMALL) -> AsyncIterator[View]:
    """The view at this size."""
    feed = Feed(settings)
    app = Seen(settings, feed)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(fed(app, feed))
        yield View(app, await stack.enter_async_context(app.run_test(size=size)))


# --- what it shows -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["80x24", "160x50"])
async def test_each_panel_shows_what_is_there(made: Scene, size: tuple[int, int]) -> None:
    async with viewed(made.settings(_BUILDER), size) as view:
        await view.shows(
            "answers in", "ops/s", "3 live · 1 left", "2 pending · 3 running · 1 failed · 1 aborted"
        )
        await view.shows("2 held · 1 waiting", "1 overdue · 1 dead", "1 open", "q quit")
        await view.press("1")
        await view.shows("builder-1", "alive", "owner", "site.render, site.test", "builder-0", "left")
        await view.press("2")
        await view.shows("succeeded", "oldest", "site.announce", "site.deploy", "site.render", "site.test")
        await view.press("3")
        await view.shows("70% reading pages", "failed", "RuntimeError", "waits for 1 other", "the old server")
        await view.press("4")
        await view.shows("file:site/index.html", "excl", "coder @ builder-1", "task:release", "shared")
        await view.press("5")
        await view.shows("overdue", "deployer", "question", "dead", "out of paper", "unread", "review")
        await view.press("6")
        text = await view.shows("memories", '{"memory_key":', "critic", "builder-2")
        assert max(map(len, text.splitlines())) <= size[0]


async def test_the_status_of_tasks_has_a_panel(made: Scene) -> None:
    status = made.nodes["reviewer-1"].rhythm.status
    status.claim("ada", "ingest", "waiting", wait_for=["hmmm://thread/x"], progress=0.4)
    status.claim("ada", "[bold]write[/]", "executing", notes=_EVIL)
    async with viewed(made.settings(_BUILDER)) as view:
        await status.flush()
        await view.press("8")
        text = await view.shows(
            "1 executing · 1 waiting", "ingest", "40%", "hmmm://thread/x", "[bold]write[/]"
        )
        assert "\x1b" not in text
        await view.find("8", "ingest")
        await view.press("enter")
        await view.shows("wait_for", "beat_index", "since")


async def test_the_beat_has_a_line_where_there_is_room(made: Scene) -> None:
    async with viewed(made.settings(_BUILDER), LARGE) as view:
        assert re.search(r"beat [1-8]/8 (plan|work|review)  12 bpm  leader -", await view.shows("bpm"))
    async with viewed(made.settings(_BUILDER)) as view:
        assert "bpm" not in await view.shows("answers in", "ops/s", "q quit")


async def test_what_happens_is_seen_without_a_key_being_pressed(made: Scene) -> None:
    async with viewed(made.settings(_BUILDER)) as view:
        await view.shows("2 pending")
        await made.nodes["reviewer-1"].jobs.schedule("site.archive")
        await view.shows("3 pending")
        made.may_end.set()
        await view.shows("3 succeeded")


async def test_rows_can_be_looked_at_and_filtered(made: Scene) -> None:
    async with viewed(made.settings(_BUILDER)) as view:
        await view.shows("site.announce")
        await view.find("3", "failed")
        await view.press("enter")
        await view.shows(
            made.jobs["failed"], "RuntimeError: the tests are red: 3 of 412 failed", "max_attempts"
        )
        await view.press("escape", "question_mark")
        await view.shows("break the lock; asks for a reason")
        await view.press("escape", "slash", *"announce", "enter")
        await view.shows("only announce", "site.announce")
        assert "site.deploy" not in view.text
        await view.press("escape")
        await view.shows("site.deploy", "site.announce")


# --- what is done --------------------------------------------------------------------------------


async def test_a_job_is_aborted_once_that_is_confirmed(made: Scene) -> None:
    node = made.nodes[_BUILDER]
    async with viewed(made.settings(_BUILDER)) as view:
        await view.shows("2 pending")
        await view.find("3", made.jobs["pending"][:8])
        await view.press("a")
        await view.shows("Abort job")
        await view.press("n", "a")
        await view.shows("Abort job")
        assert (await node.jobs.find(made.jobs["pending"])).state == "pending"
        await view.press("y")
        await view.shows(" aborted", "2 failed · 2 aborted")  # what waited for it has failed
        job = await node.jobs.find(made.jobs["pending"])
        assert (job.state, job.reason) == ("aborted", "aborted by hand")
        await view.find("3", made.jobs["aborted"][:8])
        await view.press("a")
        await view.shows("already ended: aborted")
    assert [report for report in await node.oplog.verify() if report.problem] == []


async def test_a_job_that_has_failed_is_retried_and_only_once(made: Scene) -> None:
    node = made.nodes[_BUILDER]
    async with viewed(made.settings(_BUILDER)) as view:
        await view.shows("1 failed")
        await view.find("3", "running")
        await view.press("r")
        await view.shows("only ended jobs can be retried")
        await view.find("3", made.jobs["failed"][:8])
        await view.press("r", "y")
        await view.shows(" retried as")
        await view.press("r", "y")
        await view.shows("was retried before as")
    retries = [job for job in await node.jobs.queries.listed(kind="site.test") if job.retry_of]
    assert [job.retry_of for job in retries] == [made.jobs["failed"]]


async def test_a_lock_is_broken_for_a_reason(made: Scene) -> None:
    node = made.nodes[_BUILDER]
    async with viewed(made.settings(_BUILDER), LARGE) as view:
        await view.shows("2 held")
        await view.find("4", "task:release")
        await view.press("a")
        await view.shows("a applies to jobs and approvals: press tab to go there")
        await view.press("b", "enter")
        await view.shows("Break the lock task:release of critic on reviewer-1?")  # without a reason it is not
        await view.press(*"hangs", "enter")
        await view.shows("task:release broken, held by critic")
    assert await node.locks.holders("task:release") == []
    (shown,) = await node.oplog.tail(kind="BreakLock")
    assert '"reason":"hangs"' in shown.payload


async def test_a_dead_letter_is_sent_again_and_a_conflict_is_settled(made: Scene) -> None:
    node = made.nodes["builder-2"]
    async with viewed(made.settings(_BUILDER)) as view:
        await view.shows("1 dead", "1 open")
        await view.find("5", "unread")
        await view.press("r")
        await view.shows("only dead letters can be sent again")
        await view.find("5", "dead")
        await view.press("r", "y")
        await view.shows("print from coder to printer sent again")
        await view.press("6", "s")
        await view.shows("which side?", '"tabs, always"', '"spaces"')
        await view.press("m")
        await view.shows("both changed content")
        await view.press("s")
        await view.shows("which side?")
        await view.press("l")
        await view.shows(" resolved: left", "none")
    assert await node.messages.queries.listed(state="dead") == []
    row = await node.occ.read("memories", {"memory_key": "style guide"})
    assert row is not None
    assert row["content"] == "tabs, always"


async def test_what_an_agent_asks_for_is_approved_or_denied(made: Scene) -> None:
    node = made.nodes["builder-2"]
    async with viewed(made.settings(_BUILDER)) as view:
        await view.shows("2 approvals wait: panel 9", "2 waiting")
        await view.press("9")
        await view.shows("intern", "ScheduleJob", "program make", "24h", "a approve", "d deny")
        await view.find("9", "SetKind")
        await view.press("enter")
        await view.shows("pending", "kind.set", '"is_paused": true')
        await view.press("escape", "a")
        await view.shows("Approve the SetKind of intern", '"kind": "site.deploy"')
        await view.press("y")
        await view.shows("SetKind of intern approved, and applied", "1 approval waits: panel 9", "1 waiting")
        await view.find("9", "ScheduleJob")
        await view.press("d")
        await view.shows("Deny the ScheduleJob of intern?")
        await view.press(*"later", "enter")
        await view.shows("ScheduleJob of intern denied")
    assert [each.kind for each in await node.job_kinds.listed() if each.is_paused] == ["site.deploy"]
    decided = await node.approvals.listed(every=True)
    assert [(each.state, each.reason) for each in decided] == [("applied", ""), ("denied", "later")]


async def test_what_others_have_done_meanwhile_is_one_line(made: Scene) -> None:
    node = made.nodes["builder-2"]
    async with viewed(made.settings(_BUILDER)) as view:
        await view.shows("1 open")
        await view.press("6", "s")
        await view.shows("which side?")
        (conflict,) = await node.conflicts.list(open_only=True)
        await node.conflicts.resolve(conflict.conflict_id, take="right", agent="judge")
        await view.press("l")
        await view.shows("was resolved (right) by")
        assert "Traceback" not in view.text


# --- what must not harm it -----------------------------------------------------------------------


async def test_what_others_wrote_can_neither_steer_the_terminal_nor_be_markup(made: Scene) -> None:
    node = made.nodes[_BUILDER]
    node.presence.activity.text = _EVIL
    await node.run_once()
    await node.locks.acquire("task:evil", agent="coder")
    evil = "UPDATE distributed_locks SET lock_key = ?3, holder_agent = ?3"
    await write(node, f"{evil} WHERE scope_id = ?1 AND repository_id = ?2 AND lock_key = 'task:evil'", _EVIL)
    async with viewed(made.settings(_BUILDER)) as view:
        await view.shows("3 held")
        for panel, word in (("1", "?]0;pwned"), ("4", "?]0;pwned")):
            await view.find(panel, word)
            await view.shows(word)
            assert not [c for c in view.text if not c.isprintable() and c != "\n"]
            await view.press("enter")
            await view.shows("[bold red]x[/]", "?evil")
            await view.press("escape")
        await view.press("b")
        await view.shows("Break the lock ?]0;pwned")
        await view.press("escape")
        await write(node, f"{_HEARTBEATS} last_seen_ms = 'soon' WHERE scope_id = ?1 AND repository_id = ?2")
        await node.locks.acquire("task:later", agent="coder")
        await view.shows("4 held")  # a heartbeat that is no time keeps nothing else from being shown


# --- where it looks ------------------------------------------------------------------------------


async def test_it_says_that_the_database_is_away_and_goes_on_when_it_is_back(
    tmp_path: Path, server: Server
) -> None:
    settings = MESH.settings(tmp_path, server, db_circuit_breaker=True)
    async with Mesh.open_command(settings) as mesh:
        await mesh.jobs.schedule("first.kind")
    server.kill()
    async with viewed(settings) as view:
        await view.shows("database away for")
        assert "Traceback" not in view.text
        await asyncio.to_thread(server.start)
        await view.shows("answers in", "first.kind", "circuit closed")
        server.kill()
        await view.shows("database away for", "first.kind")  # what was seen last is still there
        await view.press("3", "a", "y")
        await asyncio.to_thread(server.start)
        await view.shows("answers in")


async def test_one_look_asks_a_server_one_question(tmp_path: Path, shared_server: Server) -> None:
    async with counting(shared_server) as gateway:
        settings = MESH.settings(tmp_path, shared_server, db_url=gateway.url)
        async with Mesh.open(settings) as node, Mesh.open_command(settings) as mesh:
            await node.roles.designate_coordinator(node.identity.node_id)
            await approval(node)
            lookout = OverviewReader(mesh)
            await lookout.read()
            before = gateway.messages
            seen = await lookout.read()
            assert [each.role for each in seen.nodes] == ["owner+coordinator"]
            assert [(each.agent, each.operation) for each in seen.approvals] == [("asker", "ScheduleJob")]
            assert gateway.messages - before == 1


async def test_the_overview_counts_all_and_tells_of_some(tmp_path: Path) -> None:
    async with Mesh.open(MEMORY.settings(tmp_path, None)) as node:
        await node.jobs.schedule_all(
            [Manifest.of(kind="many", payload=n) for n in range(MAX_ITEMS + 50)], new=True
        )
        await node.job_kinds.pause("many")
        await node.job_kinds.drain(node.identity.node_id)
        await node.messages.send("b", "hello", sender="a")
        seen = await overview(node)
        (kind,) = seen.kinds
        assert (kind.jobs, kind.is_paused) == ({"pending": MAX_ITEMS + 50}, True)
        assert (len(seen.jobs), seen.jobs_in("pending")) == (MAX_ITEMS, MAX_ITEMS + 50)
        assert (seen.mail.unread, seen.draining) == (1, (node.identity.node_id,))
        assert seen.last_op_id == await node.oplog.last_id()
        assert seen.database.home == "memory"
