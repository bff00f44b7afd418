"""An orchestrator: a node of the mesh that works on jobs, and the home of one agent who answers messages.

    VOX_MESH_ENABLED=1 VOX_MESH_NODE_ID=coder python -m tools.demo.orchestrator coder

Begin with this when you write your own. What you don't need is `emit`, by which the demo knows what
happens, and `pace_s`, which stands for the work itself: a call of a model, a compiler, a run of tests.
It ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tools.demo.fenced_files import FencedFiles, TooLate
from tools.demo.scenario import CHANGELOG, EDIT_STEPS, NOTES, ORCHESTRATORS, PLAN, README, other_than
from vox_mesh import ConflictRecorded, JobContext, Manual, Mesh, MeshError, Message, run
from vox_mesh.node import MeshNode

_PLACES: Final = 2
_LOCK_S: Final = 2.0
_LOCK_WAIT_S: Final = 1.0
_MESSAGE_S: Final = 3.0
_AGAIN_S: Final = 0.3


class Orchestrator:
    """The worker and the agent of this process."""

    def __init__(self, mesh: MeshNode, name: str) -> None:
        self._mesh = mesh
        self._name = name
        self._spec = ORCHESTRATORS[name]
        self._fenced_files = FencedFiles(Path("board"))

    async def run(self) -> None:
        """Work and answer until the input ends; then finish or release the running jobs."""
        for kind in self._spec.kinds:
            self._mesh.worker.handles(kind)(self.work)
        async with self._mesh.worker.running(concurrency=_PLACES):
            self.emit("joined", incarnation=self._mesh.incarnation)
            answering = asyncio.create_task(self.answer())
            ending = asyncio.create_task(_end_of_input())
            await asyncio.wait({answering, ending}, return_when=asyncio.FIRST_COMPLETED)
            answering.cancel()
            with suppress(asyncio.CancelledError):
                await answering

    # --- the worker ------------------------------------------------------------------------------

    async def work(self, context: JobContext) -> dict[str, Any]:
        """Run one job, step by step. Steps that `resumed` has from an earlier attempt are skipped."""
        job, steps, name = context.job, context.payload["steps"], context.payload["name"]
        done = 0 if context.resumed is None else context.resumed["steps"]
        about = {"job": job.job_id, "kind": job.kind, "name": name, "claim_token": job.claim_token}
        self.emit("began", **about, done=done, steps=steps)
        while done < steps:
            await asyncio.sleep(self._spec.pace_s)
            done += 1
            await context.checkpoint({"steps": done})
            self.emit("stepped", **about, done=done, steps=steps)
        if job.kind in ("fetch", "test"):
            reviewer = other_than(self._name, name)
            await self._mesh.messages.send(reviewer, {"name": name}, msg_type="review", max_attempts=100)
        elif job.kind == "report":
            await self._mesh.occ.update("memories", NOTES, lambda row: _with_line(row, name))
        self.emit("did", **about)
        return {"name": name, "by": self._name}

    # --- the agent -------------------------------------------------------------------------------

    async def answer(self) -> None:
        """Process one message after another; acknowledge each when that is done, and not before."""
        async for message in self._mesh.messages.receive(
            self._name, roles=self._spec.roles, lease=_MESSAGE_S
        ):
            about = {
                "message": message.message_uuid,
                "type": message.msg_type,
                "sender": message.sender_agent,
            }
            self.emit("received", **about)
            try:
                await self._deal_with(message)
                await self._mesh.messages.ack(message)
            except (MeshError, TooLate):  # the lock, or the message, has another holder by now
                with suppress(MeshError):
                    await self._mesh.messages.nack(message, retry_in=_AGAIN_S)
            else:
                self.emit("acked", **about)

    async def _deal_with(self, message: Message) -> None:
        match message.msg_type:
            case "review":
                name = message.body["name"]
                key = README if "e" in name else CHANGELOG
                await self._write_under_lock(key, f"reviewed {name}", message)
                await self._mesh.messages.reply(message, f"{name} is fine", msg_type="reviewed")
            case "edit":
                await self._write_under_lock(CHANGELOG, "edited", message, steps=EDIT_STEPS)
            case "revise":
                await self._revise(message)

    async def _write_under_lock(self, key: str, text: str, message: Message, steps: int = 0) -> None:
        """Write to a shared file: under its lock, and with its fencing token."""
        async with self._mesh.locks.hold(key, ttl=_LOCK_S, wait=_LOCK_WAIT_S) as lock:
            self.emit("holds", key=key, token=lock.fence_token, what=text)
            try:
                for _ in range(steps):
                    await asyncio.sleep(self._spec.pace_s)
                    await self._mesh.messages.renew(message, lease=_MESSAGE_S)  # a long step
                self._fenced_files.write(key, lock.fence_token, node=self._name, text=text)
                self.emit("wrote", key=key, token=lock.fence_token)
            finally:
                self.emit("lets_go", key=key, token=lock.fence_token)

    async def _revise(self, message: Message) -> None:
        """Write the plan over the version that we were shown. If it has changed, that is a conflict.

        Under the id of the message this takes effect once, however often the message is delivered.
        """
        result = await self._mesh.occ.write(
            "memories",
            PLAN,
            {"content": f"{self._name}'s plan"},
            message.body,
            strategy=Manual(),
            script_key=message.message_uuid,
        )
        conflict = result.conflict_id if isinstance(result, ConflictRecorded) else None
        self.emit("revised", conflict=conflict)

    # --- for the demo ----------------------------------------------------------------------------

    def emit(self, event: str, **about: Any) -> None:
        """Print an event, with the time by the database's clock."""
        line = {"at_ms": self._mesh.clock.now_ms, "node": self._name, "event": event, **about}
        print(json.dumps(line), flush=True)


def _with_line(row: dict[str, Any] | None, name: str) -> dict[str, Any]:
    """Return the notes with one more line, unless they have it: a job may be done twice."""
    lines = set((row or {}).get("content", "").split()) | {name}
    return {"content": " ".join(sorted(lines))}


async def _end_of_input() -> None:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    await reader.read()


async def _main(name: str) -> None:
    async with Mesh.open() as mesh:
        await Orchestrator(mesh, name).run()


if __name__ == "__main__":
    try:
        run(_main(sys.argv[1]))
    except MeshError as error:
        raise SystemExit(f"{sys.argv[1]}: {error.line}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
