"""What a handler is given: the job's payload, and all that it may say or leave while it works."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from vox_mesh.errors import BadValue
from vox_mesh.jobs.progress import Notebook
from vox_mesh.jobs.proof.artifacts import Artifact, Artifacts
from vox_mesh.jobs.transitions import SQL
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.jobs.inference import SNAPSHOT, inference_snapshot
from vox_mesh.model.jobs.records import Job
from vox_mesh.model.rhythm.costs import Resources
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.store.script import Statement, guard
from vox_mesh.store.store import Store

if TYPE_CHECKING:
    from vox_mesh.jobs.worker.limits import AttemptLimits

T = TypeVar("T")

_CALL_S: Final = 60.0
_MAX_ARTIFACTS: Final = 64


class JobContext:
    """One attempt at a job, as its handler sees it.

    All but the coroutines may also be called from the thread of a handler that is not async; such a one
    runs coroutines with `context.run(...)`.
    """

    def __init__(
        self, job: Job, store: Store, clock: MeshClock, artifacts: Artifacts, resumed: Any = None
    ) -> None:
        self.job: Final = job
        self.core: Final = job.core
        """The manifest: what the job's id is the hash of."""
        self.payload: Final[Any] = self.core.get("payload")
        self.resumed: Final = resumed
        """The last checkpoint of an earlier attempt, or `None`."""
        self.kept: list[Artifact] = []
        self._store = store
        self._clock = clock
        self._artifacts = artifacts
        self._notebook = Notebook(store, job)
        self._loop = asyncio.get_running_loop()
        self.bound: AttemptLimits | None = None
        """What bounds it: its score, and budgets."""
        self._is_cancelled = False
        self._cancellation: threading.Event | None = None  # if a thread waits for it
        self.thread: asyncio.Future[Any] | None = None
        """The call of a handler that is not async: it goes on until it ends by itself."""

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self.job.attempts

    # --- saying ----------------------------------------------------------------------------------

    def progress(self, fraction: float | None = None, message: str | None = None) -> None:
        """Say how far it is, from 0 to 1, and what is being done."""
        if fraction is not None and not 0 <= fraction <= 1:
            raise BadValue(f"progress is from 0 to 1, not {fraction}")
        self._soon(self._notebook.progress, fraction, message)

    def log(self, text: str) -> None:
        """Say something, for `vox-mesh job logs`."""
        self._soon(self._notebook.log, "log", text if text.endswith("\n") else text + "\n")

    def output(self, stream: str, text: str) -> None:
        """What a command prints, as it comes."""
        self._soon(self._notebook.log, stream, text)

    async def checkpoint(self, value: Any) -> None:
        """Keep where another attempt may go on: any JSON value. It is durable when this returns."""
        await self._notebook.checkpoint(value)

    # --- its bounds ------------------------------------------------------------------------------

    @property
    def phrase_beats(self) -> float | None:
        """How many beats this attempt may take; `None`: its job has no score."""
        return None if self.bound is None else self.bound.phrase_beats

    @property
    def beats_left(self) -> float | None:
        """How many of them are left."""
        beats = self.phrase_beats
        return None if beats is None or self.bound is None else max(0.0, beats - self.bound.beats)

    def charge(self, **amounts: float | Mapping[str, float]) -> None:
        """Report what was used beside what the worker measures, such as `gpu_sec={"A100": 3.2}`."""
        more = Resources.of(amounts)
        if self.bound is not None:
            self._soon(self.bound.meter.report, more)

    # --- leaving ---------------------------------------------------------------------------------

    async def keep(self, name: str, body: bytes | str, type: str | None = None) -> Artifact:  # noqa: A002
        """Leave an artifact, which is part of the proof."""
        if isinstance(body, str):
            body, type = body.encode(), type or "text/plain"  # noqa: A001
        return self._add(await self._artifacts.keep(body, name=name, type=type or "application/octet-stream"))

    async def keep_file(self, name: str, path: Path, type: str = "application/octet-stream") -> Artifact:  # noqa: A002
        """Leave a file as an artifact."""
        return self._add(await self._artifacts.keep_file(path, name=name, type=type))

    async def record_inference(
        self,
        *,
        model: str,
        version: str,
        prompt: Any,
        output: Any,
        inputs: Sequence[Any] = (),
        started_ms: int | None = None,
        finished_ms: int | None = None,
    ) -> Artifact:
        """Leave a snapshot of one call of a model: what it was asked and what it said."""
        now_ms = self._clock.now_ms
        snapshot = inference_snapshot(
            self.job.job_id,
            model,
            version,
            prompt,
            output,
            inputs,
            now_ms if started_ms is None else started_ms,
            now_ms if finished_ms is None else finished_ms,
        )
        name = f"inference-{sum(each.type == SNAPSHOT for each in self.kept) + 1}"
        body = canonical(snapshot).encode()
        return self._add(await self._artifacts.keep(body, name=name, type=SNAPSHOT))

    def _add(self, artifact: Artifact) -> Artifact:
        if len(self.kept) >= _MAX_ARTIFACTS:
            raise BadValue(f"a job leaves at most {_MAX_ARTIFACTS} artifacts")
        self.kept.append(artifact)
        return artifact

    # --- the claim -------------------------------------------------------------------------------

    def fence(self) -> Statement:
        """A guard for scripts of the handler: they are applied only while the job is still ours."""
        job = self.job
        values = (*self._store.tenant[:2], job.job_id, job.claim_token, job.claimer)
        return guard(f"EXISTS ({SQL['is_current']})", values, refusal="stale_claim")

    @property
    def is_cancelled(self) -> bool:
        """Whether the job is not ours any more, or the worker stops: what is done now is in vain."""
        return self._is_cancelled

    def cancel(self) -> None:
        """Tell a handler in a thread that it is to stop."""
        self._is_cancelled = True
        if self._cancellation is not None:
            self._cancellation.set()

    def wait_cancelled(self, timeout: float) -> bool:
        """For a handler in a thread: wait for so long, or until it is to stop; whether it is."""
        self._cancellation = event = self._cancellation or threading.Event()
        return self._is_cancelled or event.wait(timeout)

    # --- threads ---------------------------------------------------------------------------------

    def run(self, doing: Coroutine[Any, Any, T], timeout: float = _CALL_S) -> T:
        """From the thread of a handler: run a coroutine, such as `context.checkpoint(...)`."""
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(timeout)

    def _soon(self, say: Any, *words: Any) -> None:
        if _running() is self._loop:
            say(*words)
        else:
            self._loop.call_soon_threadsafe(say, *words)

    async def close(self) -> None:
        """Write what was said last."""
        await self._notebook.close()


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
