"""Limits: a worker enforces the score of a job and the budgets it is charged to.

Most jobs have neither; they are only counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.jobs.progress import Notebook
from vox_mesh.jobs.worker.attempt_limits import AttemptLimits
from vox_mesh.jobs.worker.limit_services import NO_BUDGET, BegunPhrase
from vox_mesh.jobs.worker.limit_watch import LimitWatch
from vox_mesh.jobs.worker.metering import Meter, ProcessShares, Shares
from vox_mesh.model.base.recent import Recent
from vox_mesh.model.jobs.records import Job
from vox_mesh.model.rhythm.budgets import Budget, agent_of
from vox_mesh.model.rhythm.plan import Plan
from vox_mesh.model.rhythm.score import Score
from vox_mesh.model.rhythm.tempo import Beat
from vox_mesh.rhythm.phrases.spec import PhraseParts

_MAX_SCORES: Final = 256


class ClaimBlock(NamedTuple):
    """The accounts for which no job is claimed, and when to check again."""

    accounts: tuple[str, ...] = ()
    is_all: bool = False
    """Whether no job is claimed at all: the budget of this worker's agent is exhausted."""
    retry_at_ms: int | None = None


class WorkerLimits:
    """The scores and budgets that limit the jobs of one worker."""

    def __init__(self, parts: PhraseParts, monotonic: Callable[[], float], agent: str | None = None) -> None:
        """`agent` is charged for the work, by default the agent of this process."""
        self._agent = agent
        self.parts = parts
        self.rhythm = parts.context
        self.budgets = parts.budgets
        self.monotonic = monotonic
        self.shares = Shares()
        self._process = ProcessShares(monotonic)
        self.watch = LimitWatch(parts.context, parts.budgets)
        self._scores: Recent[bytes, Score] = Recent(_MAX_SCORES)
        self._charged_in: Beat | None = None  # the beat in which lost attempts were last charged

    @property
    def agent(self) -> str:
        """Return the agent of this worker, by default its node."""
        return self._agent or self.rhythm.agent or self.rhythm.node_id

    async def blocked_claims(self) -> ClaimBlock:
        """Return the accounts for which no job is claimed."""
        if not await self.budgets.standings():
            return ClaimBlock()
        accounts = tuple(await self.budgets.exhausted_accounts())
        is_all = await self.budgets.is_exhausted(self.agent)
        return ClaimBlock(accounts, is_all, self.budgets.next_check_ms if accounts or is_all else None)

    async def read_plan(self) -> Plan:
        """Return the tempos, as this node has read them in this bar."""
        return self.rhythm.plan

    def new_meter(self) -> Meter:
        """Return the meter of an attempt."""
        return Meter(self.monotonic, self._process)

    async def of(
        self,
        job: Job,
        core: Mapping[str, Any],
        notebook: Notebook,
        meter: Meter | None = None,
        begun: BegunPhrase | None = None,
    ) -> AttemptLimits | None:
        """Return the limits of an attempt, or `None` if it has none; `core` is its manifest's.

        `begun` is given if the attempt has begun before.
        """
        standings = await self.budgets.standings()
        if "score" not in core and "budget" not in core and agent_of(self.agent) not in standings:
            return None
        score = self._score_of(core["score"]) if "score" in core else None
        budget = Budget.of_document(core["budget"]) if "budget" in core else NO_BUDGET
        spent: tuple[float, int | None] = (0.0, None)
        is_repeated = job.attempts > 1
        if begun is None:
            await self._charge_lost(job, is_repeated=is_repeated)
        if is_repeated:
            spent = await self.budgets.spent_on_job(job.job_id)
        meter = meter or Meter(self.monotonic)
        return AttemptLimits(self, job, notebook, meter, score, budget, standings, *spent, begun)

    async def begun(self, job: Job) -> BegunPhrase | None:
        """Return the phrase that the current attempt at a job has begun, or `None` if it is not recorded."""
        row = await self.budgets.begun(job.job_id, job.claim_token)
        return None if row is None else BegunPhrase(*row)

    def _score_of(self, document: Mapping[str, Any]) -> Score:
        """Return the score of a document: many jobs have the same."""
        key = orjson.dumps(document)
        score = self._scores.get(key)
        if score is None:
            score = self._scores[key] = Score.of_document(document)
        return score

    def begin_phrases(self) -> None:
        """Claim the status of all running attempts that have not claimed any."""
        for attempt in self.watch.attempts:
            attempt.begin_phrase()

    async def _charge_lost(self, job: Job, *, is_repeated: bool) -> None:
        """Charge lost attempts: of this job if it was tried before, and others once per beat."""
        beat = self.rhythm.beat()
        if is_repeated or beat is not self._charged_in:
            self._charged_in = beat
            await self.budgets.charge_lost(job.job_id, fresh=is_repeated)
