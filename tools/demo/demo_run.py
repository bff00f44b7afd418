"""The course of the demo: who starts when, what they are asked, and who is killed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from functools import partial
from typing import Final

from tools.demo.console_link import console_link
from tools.demo.fenced_files import TooLate
from tools.demo.processes import Failed, OrchestratorProcesses
from tools.demo.scenario import (
    CHANGELOG,
    CORE,
    EDITOR,
    HEIR,
    OWNER,
    PLAN,
    ROUTES,
    VICTIM,
    manifests,
)
from tools.demo.strict_part import StrictPart
from tools.demo.view import View
from tools.demo.workspace import Event, Workspace
from vox_mesh import Mesh, Message, Take
from vox_mesh.model.jobs.records import ENDS
from vox_mesh.model.messages.records import MessageState

_ENOUGH: Final = 20
"""The number of ended jobs before a node is killed."""

_LOOK_S: Final = 0.5
_CALM_S: Final = 0.1
_REASON: Final = "it came second, but is the better plan"


class DemoRun:
    """One run. The database is watched through a mesh with the owner's key."""

    def __init__(self, workspace: Workspace, mesh: Mesh, view: View) -> None:
        self._workspace = workspace
        self._mesh = mesh
        self._view = view
        self._processes = OrchestratorProcesses(workspace, view.on_event)
        self._open_messages = 0

    async def run(self, deadline: asyncio.Timeout, *, keeps_open: bool) -> None:
        """Run all of it, until every process has left.

        With `keeps_open`, the nodes stay until the person ends the demo, without a deadline.
        """
        looking = asyncio.create_task(self._look(), name="demo-look")
        looking.add_done_callback(self._looked)
        try:
            await self._begin()
            edit = await self._occupy_the_victim()
            await self._join(HEIR)
            await asyncio.gather(self._have_a_conflict(), self._lose_the_victim(edit))
            await self._until(lambda: self._view.ended == self._view.wanted and not self._open_messages)
            if keeps_open:
                deadline.reschedule(None)
                await self._keep_open()
            await self._processes.leave()
            await self._mesh.oplog.anchor()  # so that a truncated chain is noticed
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            await self._processes.close()

    # --- steps -----------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Schedule the work in the name of the owner, before any node runs; then start two nodes."""
        await self._mesh.roles.initialise()
        for kind, node in ROUTES.items():
            await self._mesh.roles.route_kind(kind, node)
        *jobs, release = manifests()
        self._view.wanted = len(jobs) + 1
        routed = " and ".join(ROUTES)
        if self._workspace.is_strict:
            strict = StrictPart(self._workspace, self._mesh, self._view.say)
            await strict.prepare()
            await strict.show_limits()
            await self._mesh.jobs.schedule_all(jobs)
            await strict.schedule_with_approval([release])
        else:
            await self._mesh.jobs.schedule_all([*jobs, release])
        self._view.say(f"{len(jobs) + 1} jobs are scheduled: fetch, build, test; {routed} go to {OWNER}")
        await self._mesh.occ.write("memories", PLAN, {"content": "the first plan"}, None)
        await asyncio.gather(self._join(OWNER), self._join(VICTIM))
        self._view.say(f"the console: {await console_link(self._workspace, self._mesh)}")

    async def _keep_open(self) -> None:
        """Let people look around in the console until they press Ctrl-C."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, ended.set)
        try:
            self._view.say(f"the console stays open: {await console_link(self._workspace, self._mesh)}")
            self._view.say("its code works once, within a minute; Ctrl-C ends the demo")
            await ended.wait()
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    async def _occupy_the_victim(self) -> Message:
        """Give it a long job, and a message that makes it hold a lock for long."""
        await self._processes.until("began", node=VICTIM, kind="build", name=CORE)
        edit = await self._mesh.messages.send(
            f"role:{EDITOR}", "the changelog, please", sender=OWNER, msg_type="edit", max_attempts=100
        )
        await self._processes.until("holds", node=VICTIM, key=CHANGELOG, what="edited")
        self._view.say(f"builds {CORE}, and edits {_short(CHANGELOG)} under its lock", VICTIM)
        return edit

    async def _have_a_conflict(self) -> None:
        """Show two agents the same plan, and let both rewrite it."""
        plan = await self._mesh.occ.read("memories", PLAN)
        for agent in (OWNER, HEIR):
            await self._mesh.messages.send(agent, plan, sender=OWNER, msg_type="revise", priority=3)
        lost = await self._processes.first(lambda each: each["event"] == "revised" and bool(each["conflict"]))
        self._view.say(
            "wrote the plan at the same time as another: its version is kept for review", lost["node"]
        )
        done = await self._mesh.conflicts.resolve(lost["conflict"], take=Take.LEFT, reason=_REASON)
        self._say("resolved", conflict=done.conflict_id, by=lost["node"])
        self._view.say(f"the conflict is resolved: {lost['node']}'s plan is taken")

    async def _lose_the_victim(self, edit: Message) -> None:
        await self._kill_the_victim(edit)
        await self._see_who_takes_over(edit)
        await self._join(VICTIM, "is back")

    async def _kill_the_victim(self, edit: Message) -> None:
        """Kill it when it is known to have a job, a lock and a message, and not before."""
        await self._until(lambda: self._view.ended >= _ENOUGH)
        core = await self._processes.until("began", node=VICTIM, kind="build", name=CORE)
        process = self._processes.process(VICTIM)
        while (token := await self._token_with_all_in_hand(core["job"], edit)) is None:
            await self._processes.change()
        await process.kill()
        self._say("killed", name=VICTIM, job=core["job"], token=token, message=edit.message_uuid)
        self._view.say(f"is killed with -9, with build {CORE}, a lock and a message in hand", VICTIM)

    async def _token_with_all_in_hand(self, job_id: str, edit: Message) -> int | None:
        """Return the token of the victim's lock, if it has that, the job and the message."""
        jobs = await self._mesh.jobs.queries.held_by(VICTIM, fresh=True)
        letter = await self._mesh.messages.queries.find(edit.message_uuid)
        holders = await self._mesh.locks.holders([CHANGELOG])
        has_both = job_id in [job.job_id for job in jobs] and letter is not None and _is_claimed(letter)
        tokens = [holder.fence_token for holder in holders if holder.holder_node == VICTIM]
        return tokens[0] if has_both and tokens else None

    async def _see_who_takes_over(self, edit: Message) -> None:
        killed = await self._processes.until("killed")
        token = killed["token"]
        is_locked = partial(_is_newer, token)
        successors: dict[str, Callable[[Event], bool]] = {
            f"locks {_short(CHANGELOG)}": lambda e: e["event"] == "holds" and is_locked(e),
            f"goes on with build {CORE}": lambda e: e["event"] == "began" and _is_core(e),
            "has the message": lambda e: e["event"] == "received" and e["message"] == edit.message_uuid,
        }

        async def one(what: str, is_it: Callable[[Event], bool]) -> None:
            event = await self._processes.first(lambda e: e["node"] != VICTIM and is_it(e))
            self._view.say(f"{what} {_seconds(event, killed)} after the kill", event["node"])

        await asyncio.gather(*(one(what, is_it) for what, is_it in successors.items()))
        await self._processes.first(lambda e: e["event"] == "wrote" and is_locked(e))
        try:
            self._workspace.fenced_files.write(CHANGELOG, token, node=VICTIM, text="edited, too late")
        except TooLate as refused:
            self._say("refused", token=token)
            self._view.say(f"a late write of {VICTIM}'s is refused: {refused}")
        else:
            raise Failed(f"{VICTIM} could still write to {_short(CHANGELOG)}")

    # --- watching --------------------------------------------------------------------------------

    async def _join(self, name: str, how: str = "joins") -> None:
        process = await self._processes.start(name)
        self._view.say(f"{how}, as process {process.pid}", name)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await self._processes.change()

    async def _look(self) -> None:
        """Update the progress whenever something was committed."""
        async for _ in self._mesh.store.changes(interval_s=_LOOK_S):
            counts = await self._mesh.jobs.queries.counts()
            letters = await self._mesh.messages.queries.counts()
            self._open_messages = sum(letters.values()) - letters.get(MessageState.ACKED, 0)
            self._view.looked(
                {kind: sum(states.get(end, 0) for end in ENDS) for kind, states in counts.items()},
                sum(letters.values()),
                letters.get(MessageState.ACKED, 0),
            )
            self._processes.wake()
            await asyncio.sleep(_CALM_S)

    def _looked(self, looking: asyncio.Task[None]) -> None:
        if not looking.cancelled():
            self._processes.failed(f"the database can't be looked at: {looking.exception()}")

    def _say(self, event: str, **about: object) -> None:
        self._processes.record({"at_ms": self._mesh.clock.now_ms, "node": "demo", "event": event, **about})


def _is_claimed(message: Message) -> bool:
    return message.state == MessageState.DELIVERED


def _is_newer(token: int, event: Event) -> bool:
    """Return whether it is about the lock that the victim had, under a newer token."""
    return bool(event["key"] == CHANGELOG and event["token"] > token)


def _is_core(event: Event) -> bool:
    return (event["kind"], event["name"]) == ("build", CORE)


def _seconds(event: Event, since: Event) -> str:
    return f"{max(0, event['at_ms'] - since['at_ms']) / 1_000:.1f} s"


def _short(key: str) -> str:
    return key.removeprefix("file:")
