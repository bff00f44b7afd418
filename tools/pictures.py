"""Pictures of `vox-mesh top` for the documentation: a small mesh at work, drawn as SVG.

`python -m tools.pictures [FOLDER]`
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tools.homes import FILE
from vox_mesh import Manifest, Manual, Mesh, Settings, Written, acting_as
from vox_mesh.cli.top.app import TopApp
from vox_mesh.cli.top.feed import Feed
from vox_mesh.cli.top.running import fed
from vox_mesh.errors import ApprovalPending
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.node import MeshNode

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "pictures"
SMALL: Final = (80, 24)
LARGE: Final = (160, 50)

_PATIENCE_S: Final = 30.0
_FONTS: Final = "Fira Code, DejaVu Sans Mono, Menlo, Consolas"
_NODES: Final = ("builder-1", "builder-2", "reviewer-1")


@dataclass
class Scene:
    """A mesh with something of everything; its work continues until `may_end` is set."""

    folder: Path
    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Queue[float] = field(default_factory=asyncio.Queue)
    nodes: dict[str, MeshNode] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)

    def settings(self, name: str) -> Settings:
        """Return the settings of a node, or of a command on its machine."""
        home = self.folder / name
        database = self.folder / "mesh.db"
        return FILE.settings(home, None, node_id=name, db_path=database, scope_id="", repository_id="website")

    async def work(self, context: JobContext) -> None:
        """Work on a job until the end, or fail if the job is meant to."""
        if context.payload == "broken":
            raise RuntimeError("the tests are red: 3 of 412 failed")
        context.progress(context.payload, "reading pages")
        self.begun.put_nowait(context.payload)
        await self.may_end.wait()


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Scene]:
    """Run three nodes at work, and one that has left, with something in each panel."""
    made = Scene(folder)
    async with AsyncExitStack() as stack:
        for name in _NODES:
            made.nodes[name] = await stack.enter_async_context(Mesh.open(made.settings(name)))
        async with Mesh.open(made.settings("builder-0")):
            pass  # it joins, and leaves
        await _work(made, stack)
        await _hold(made, stack)
        await _write(made.nodes["reviewer-1"])
        await _disagree(made.nodes["builder-2"])
        await _ask(made.nodes["builder-1"], made.nodes["builder-2"])
        for node in made.nodes.values():
            await node.run_once()
        try:
            yield made
        finally:
            made.may_end.set()


async def _work(made: Scene, stack: AsyncExitStack) -> None:
    first, jobs = made.nodes["builder-1"], made.jobs
    for name, kinds in (("builder-1", ("site.render", "site.test")), ("builder-2", ("site.render",))):
        for kind in kinds:
            made.nodes[name].worker.handles(kind)(made.work)
        await stack.enter_async_context(made.nodes[name].worker.running(concurrency=4))
    stack.callback(made.may_end.set)  # before the workers wait for their jobs
    failed = await first.jobs.schedule("site.test", "broken", max_attempts=1)
    await first.jobs.wait(failed, timeout=_PATIENCE_S)
    jobs["failed"] = failed.job_id
    for progress in (0.2, 0.45, 0.7):
        jobs["running"] = (await first.jobs.schedule("site.render", progress)).job_id
    for _ in range(3):
        await asyncio.wait_for(made.begun.get(), _PATIENCE_S)
    deploy = await first.jobs.schedule("site.deploy", priority=3)
    jobs["pending"] = deploy.job_id
    await first.jobs.schedule("site.announce", after=[deploy])
    aborted = await first.jobs.schedule("site.deploy", {"to": "the old server"})
    await first.jobs.abort(aborted, reason="the old server is gone")
    jobs["aborted"] = aborted.job_id


async def _hold(made: Scene, stack: AsyncExitStack) -> None:
    builder, reviewer = made.nodes["builder-1"], made.nodes["reviewer-1"]
    await builder.locks.acquire("file:site/index.html", agent="coder", ttl=300)
    await reviewer.locks.acquire("task:release", agent="critic", ttl=3_600, shared=True)
    waiting = asyncio.create_task(reviewer.locks.acquire("file:site/index.html", agent="critic", wait=600))
    stack.push_async_callback(_ended, waiting)
    async with asyncio.timeout(_PATIENCE_S):
        while not (await builder.locks.holders("file:site/index.html"))[0].waiting:
            await builder.store.changed(builder.store.change_count)


async def _ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _write(node: MeshNode) -> None:
    await node.messages.send("coder", {"review": "the title is too long"}, sender="critic", msg_type="review")
    await node.messages.send("deployer", "is it out?", sender="critic", msg_type="question", ack_within=0.001)
    lost = await node.messages.send("printer", "page 1", sender="coder", msg_type="print", max_attempts=1)
    (claimed,) = await node.messages.inbox("printer")
    assert claimed.message_uuid == lost.message_uuid
    await node.messages.nack(claimed, reason="out of paper")


async def _disagree(node: MeshNode) -> None:
    key = {"memory_key": "style guide"}
    assert isinstance(
        await node.occ.write("memories", key, {"content": "tabs", "importance": 1}, None), Written
    )
    base = await node.occ.read("memories", key)
    await node.occ.write("memories", key, {"content": "spaces"}, base)
    await node.occ.write(
        "memories", key, {"content": "tabs, always"}, base, strategy=Manual(), agent="critic"
    )


async def _ask(owner: MeshNode, node: MeshNode) -> None:
    await owner.grants.admit("intern")
    await owner.grants.issue("intern", ["ask job.exec", "ask kind.set"])
    command = Manifest.of(command=["make", "publish"], timeout="10m")
    with acting_as("intern"):
        for asked in (node.jobs.schedule_all([command]), node.job_kinds.pause("site.deploy")):
            with suppress(ApprovalPending):
                await asked


# --- the pictures --------------------------------------------------------------------------------


class Seen(TopApp):
    """The view, with an event each time it was drawn."""

    def __init__(self, settings: Settings, feed: Feed) -> None:
        super().__init__(settings, feed)
        self.news = asyncio.Event()

    def draw(self) -> None:
        """Draw, and set the event."""
        super().draw()
        self.news.set()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until it shows this."""
        async with asyncio.timeout(_PATIENCE_S):
            while not condition():
                self.news.clear()
                await self.news.wait()

    @property
    def text(self) -> str:
        """Return the text on the screen."""
        width, height = self.size
        lines = self.screen._compositor.render_strips() if width and height else []  # noqa: SLF001
        return "\n".join(strip.text.rstrip() for strip in lines)


async def _pictures(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="vox-pictures-") as temporary:
        os.chdir(temporary)  # so that no picture shows where it was made
        async with scene(Path(".vox")) as made:
            writing = asyncio.create_task(_keep_writing(made.nodes["reviewer-1"]))
            for name, size, keys in (
                ("top-small", SMALL, ()),
                ("top-large", LARGE, ()),
                ("top-settle", SMALL, ("6", "s")),
                ("top-details", SMALL, ("enter",)),
            ):
                picture = await _picture(made, size, keys)
                await asyncio.to_thread((folder / f"{name}.svg").write_text, picture)
            await _ended(writing)


async def _keep_writing(node: MeshNode) -> None:
    """Append ops in waves, so that the chart shows something."""
    for n in itertools.count():
        await node.oplog.anchor()
        await asyncio.sleep(0.06 + 0.05 * math.sin(n / 9))


async def _picture(made: Scene, size: tuple[int, int], keys: tuple[str, ...]) -> str:
    settings = made.settings("builder-1")
    feed = Feed(settings)
    app = Seen(settings, feed)
    async with fed(app, feed), app.run_test(size=size) as pilot:
        await app.until(lambda: app.text.count("▄") + app.text.count("▆") > 1)
        for key in keys:
            await pilot.press(key)
            await pilot.pause(0.3)
        await pilot.pause(0.3)
        return with_fonts_at_hand(app.export_screenshot(title="vox-mesh top"))


def with_fonts_at_hand(svg: str) -> str:
    """Return the picture with the reader's fonts: none is fetched."""
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code,", f"{_FONTS},")


if __name__ == "__main__":
    wanted = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else FOLDER
    wanted.mkdir(parents=True, exist_ok=True)
    asyncio.run(_pictures(wanted))
