"""Runs of workers in processes of their own, and whether the log that they leave is one that may be."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from tests.support.oplog.authoring import assert_sound
from tests.support.running.jobs import Job as Task
from tests.support.running.processes import Writer
from vox_mesh import Mesh, Settings
from vox_mesh.jobs.proof.brief_proof import WORKER, Completer, with_whole_proof
from vox_mesh.jobs.rebuild import Rebuild
from vox_mesh.model.jobs.proof import Proof, faults_of
from vox_mesh.model.jobs.records import (
    ABORT,
    CLAIM,
    COMPLETE,
    DEFAULT_INTERRUPTIONS,
    ENDS,
    EXPIRE,
    JOB_OPS,
    SCHEDULE,
    START,
    YIELD,
    Job,
)
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.node import MeshNode

PATIENCE_S: Final = 120.0

_PROGRAM: Final = "tests.support.jobs.job_programs"
_ENDED: Final = "SELECT count(*) FROM jobs WHERE scope_id = ? AND ended_ms IS NOT NULL"
_ALL: Final = 10**6


@dataclass(frozen=True)
class WorkerTask(Task):
    """How a worker works."""

    path: str = ""
    lease: float = 1.5
    places: int = 4


class WorkerProcess(Writer):
    """A running `tests.support.jobs.job_programs`."""

    @property
    def begun(self) -> list[str]:
        """The jobs that it has begun to work on."""
        return [report["begun"] for report in self.reports if "begun" in report]

    async def is_ready(self) -> None:
        """Wait until it takes jobs."""
        await self.until(lambda reports: any("node" in report for report in reports))

    async def stop(self) -> None:
        """Have it end in good order, once it has begun."""
        await self.is_ready()
        self._process.terminate()
        assert await self.ended() == 0, self.errors


class Works:
    """One run: its workers, a node that looks on, and the file in which each attempt is written down."""

    def __init__(self, settings: Settings, folder: Path, mesh: MeshNode, lease: float, places: int) -> None:
        self.mesh = mesh
        self.workers: dict[str, WorkerProcess] = {}
        self._settings = settings
        self._folder = folder
        self._path = folder / "begun"
        self._path.touch()
        self._task = WorkerTask("work", path=str(self._path), lease=lease, places=places)
        self._started: list[WorkerProcess] = []

    async def start(self, name: str) -> WorkerProcess:
        """Start a worker, or start it again."""
        settings = settings_of(self._settings, self._folder, name)
        log = self._folder / f"{name}-{len(self._started)}.log"
        worker = await WorkerProcess.start(settings, self._task, log, _PROGRAM)
        assert isinstance(worker, WorkerProcess)
        self._started.append(worker)
        self.workers[name] = worker
        return worker

    async def close(self) -> None:
        """Leave no process behind."""
        await asyncio.gather(*(worker.kill() for worker in self._started))

    async def until_ended(self, count: int) -> None:
        """Wait until this many jobs have ended."""
        shown = None
        try:
            async with asyncio.timeout(PATIENCE_S):
                async for change in self.mesh.store.watch(_ENDED, (self._settings.scope_id,)):
                    shown = int(change.rows.value)
                    if shown >= count:
                        return
        except TimeoutError:
            raise AssertionError(f"{shown} of {count} have ended\n{await self._story()}") from None

    async def _story(self) -> str:
        jobs = await self.mesh.jobs.queries.listed(limit=_ALL)
        waiting = [job._replace(manifest="", seed="") for job in jobs if not job.has_ended]
        said = "\n---\n".join(f"{each._log.name}\n{each.errors[-1_500:]}" for each in self._started)
        return f"{waiting[:5]}\n{said}"

    # --- what became of them ---------------------------------------------------------------------

    async def assert_right(self, job_ids: Sequence[str]) -> History:
        """Each job has ended once, no two had it at a time, and the log and its proofs are whole."""
        await self.mesh.store.synced()
        history = History({key.node_id: key.public_key for key in await self.mesh.oplog.keys()})
        async for page in _committed(self.mesh):
            for entry in page:
                history.add(entry)
        jobs = await self.mesh.jobs.queries.find_all(job_ids, fresh=True)
        assert set(jobs) == set(job_ids) == set(history.stories)
        for job_id, job in jobs.items():
            history.stories[job_id].assert_told_of(job)
        self._assert_begun(history)
        self._assert_proven(history)
        rebuild = Rebuild(self.mesh.store)
        assert (await rebuild.check(), rebuild.findings) == ([], [])
        await assert_sound(self.mesh)
        return history

    def _assert_begun(self, history: History) -> None:
        """No attempt was begun twice, nor without a claim."""
        begun = Counter(tuple(line.split()) for line in self._path.read_text().splitlines())
        assert set(begun.values()) == {1}
        claims = {
            (job_id, str(token), node)
            for job_id, story in history.stories.items()
            for token, node in story.claims.items()
        }
        assert not set(begun) - claims

    def _assert_proven(self, history: History) -> None:
        for node, item in history.completions:
            proof = Proof(**item["proof"])
            assert faults_of(proof, job_id=item["job_id"], worker_key=history.keys[node]) == []
            assert proof.envelope["attempt"] == item["claim_token"]


@dataclass
class JobHistory:
    """The history of one job in the log, in the order of the commits."""

    max_interruptions: int
    token: int = 0
    claims: dict[int, str] = field(default_factory=dict)
    holder: str | None = None
    is_started: bool = False
    starts: int = 0
    failures: int = 0
    interruptions: int = 0
    end: str | None = None

    def claim(self, node: str, token: int) -> None:
        """It is claimed: it was free."""
        assert self.holder is None, f"{node} claims what {self.holder} has"
        assert self.end is None
        assert token > self.token
        self.token, self.holder, self.is_started = token, node, False
        self.claims[token] = node

    def keep(self, node: str, token: int) -> None:
        """It is held, under the token of its last claim."""
        assert (self.holder, self.token) == (node, token)

    def start(self, node: str, token: int) -> None:
        """Its work begins, once for each claim."""
        self.keep(node, token)
        assert not self.is_started
        self.is_started = True
        self.starts += 1

    def go(self, token: int, failed: int, state: str | None = None, interrupted: int = 0) -> None:
        """It is free again."""
        assert self.holder is not None
        assert self.token == token
        self.holder = None
        self.failures += failed
        self.interruptions += interrupted
        self.end = state

    def assert_told_of(self, job: Job) -> None:
        """The row is what the log tells, and it has ended."""
        assert job.state in ENDS
        assert (job.state, job.claim_token) == (self.end, self.token)
        assert (job.failures, job.interruptions) == (self.failures, self.interruptions)
        assert self.starts <= job.attempts == len(self.claims)


class History:
    """All that was done to jobs, judged while it is read."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self.keys = keys
        self.stories: dict[str, JobHistory] = {}
        self.completions: list[tuple[str, dict[str, Any]]] = []
        self.refused: Counter[tuple[str, str | None]] = Counter()
        self.expired = 0

    def add(self, entry: LogEntry) -> None:
        """The next that was committed."""
        if entry.kind not in JOB_OPS:
            return
        if not entry.accepted:
            self.refused[entry.kind, entry.reason] += 1
            return
        payload = orjson.loads(entry.payload)
        for item in self._moved(entry, payload["jobs"]):
            try:
                self._add(entry, payload, item)
            except AssertionError as fault:
                raise AssertionError(f"{entry.kind} {entry.op_id} of {item['job_id']}: {fault}") from fault

    @staticmethod
    def _moved(entry: LogEntry, items: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        if entry.result is None:
            return iter(items)
        moved = set(orjson.loads(orjson.loads(entry.result)["moved"]))
        return (item for item in items if item["job_id"] in moved)

    def _add(self, entry: LogEntry, payload: dict[str, Any], item: dict[str, Any]) -> None:
        if entry.kind == SCHEDULE:
            self.stories.setdefault(
                item["job_id"], JobHistory(item.get("max_interruptions", DEFAULT_INTERRUPTIONS))
            )  # again, it is the same job
            return
        story, token = self.stories[item["job_id"]], item.get("claim_token", 0)
        node = entry.node_id.partition("/")[0]  # commands have a chain of their own
        if entry.kind == CLAIM:
            (story.keep if payload.get("renews") else story.claim)(node, token)
        elif entry.kind == START:
            story.start(node, token)
        elif entry.kind == COMPLETE:
            story.keep(node, token)
            assert story.is_started
            story.go(token, item["state"] == "failed", item["state"])
            completer = Completer(entry.author, self.keys[entry.node_id], payload.get(WORKER))
            self.completions.append((entry.node_id, dict(with_whole_proof(item, completer))))
        elif entry.kind == YIELD:
            story.keep(node, token)
            story.go(token, item.get("failed", 0), None, item.get("interrupted", 0))
        elif entry.kind == EXPIRE:
            self.expired += 1
            is_last = story.interruptions >= story.max_interruptions
            story.go(token, 0, "failed" if is_last else None, 1)
        else:
            assert entry.kind == ABORT
            story.holder, story.end = None, "aborted"


async def _committed(mesh: Mesh) -> AsyncIterator[list[LogEntry]]:
    """The whole log in the order of the commits, in pages."""
    last, newest = 0, await mesh.oplog.last_id()
    while last < newest:
        page = await mesh.oplog._pages.after(last)
        last = page[-1].id if page else newest
        yield page


def settings_of(settings: Settings, folder: Path, name: str) -> Settings:
    """The same mesh, as a node with a folder of its own."""
    path = folder / name / "local.db" if settings.db_url else settings.db_path
    return settings.model_copy(update={"home_dir": folder / name, "db_path": path, "node_id": name})


@asynccontextmanager
async def works(settings: Settings, folder: Path, *, lease: float, places: int) -> AsyncIterator[Works]:
    """A run; whatever becomes of the test, all of its processes are gone at the end."""
    async with AsyncExitStack() as stack:
        looking_on = settings_of(settings, folder, "looker-on")
        mesh = await stack.enter_async_context(Mesh.open(looking_on))
        run = Works(settings, folder, mesh, lease, places)
        stack.push_async_callback(run.close)
        yield run
