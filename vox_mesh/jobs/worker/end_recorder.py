"""The end recorder: what the ends of attempts add to the script of their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vox_mesh.jobs.worker.attempt_result import AttemptResult
from vox_mesh.model.jobs.records import JobState
from vox_mesh.model.rhythm.tallies import CountedJob
from vox_mesh.rhythm.budgets import Budgets
from vox_mesh.rhythm.tallies import Tallies
from vox_mesh.rhythm.token_ledger import AttemptCharge
from vox_mesh.store.script import Statement


class EndRecorder:
    """Records ends: a metered attempt has a row of its own, all other jobs are counted."""

    def __init__(self, budgets: Budgets, tallies: Tallies) -> None:
        self._budgets = budgets
        self._tallies = tallies

    def statements(self, results: Sequence[AttemptResult]) -> list[Statement]:
        """Return the statements for results that are written together."""
        ends = [each.end.make() for each in results if each.end is not None and not each.end.is_brief]
        counted = [
            _counted(each)
            for each in results
            if (each.end is None and not each.is_requeued) or (each.end is not None and each.end.is_brief)
        ]
        statements = [self._budgets.record(*ends)] if ends else []
        if counted:
            agent = results[0].agent  # they are all of one
            statements.append(self._tallies.count(counted, None if agent is None else agent.agent))
        charges = [self._charge(each) for each in results if each.tokens]
        if charges:
            statements += self._budgets.tokens.charge(charges)
        return statements

    def _charge(self, result: AttemptResult) -> AttemptCharge:
        agent = self._budgets.own_agent if result.agent is None else result.agent.agent
        return AttemptCharge.of(result.job, agent, result.tokens, result.finished_ms)

    def logged(self, result: AttemptResult) -> Mapping[str, Any]:
        """Return what the op of a result says about the end of its attempt: its phrase, and used tokens."""
        logged: dict[str, Any] = {}
        if result.end is not None and result.end.logged is not None:
            logged["phrase"] = result.end.logged
        if result.tokens:
            logged["usage"] = self._budgets.tokens.bill(result.tokens).document()
        return logged


def _counted(result: AttemptResult) -> CountedJob:
    job, usage = result.job, result.usage
    ended_ms = max(result.finished_ms, job.started_ms or 0)  # one that could not start has no end
    began_ms = job.started_ms or ended_ms
    if result.end is not None:
        began_ms, ended_ms = result.end.began_ms, result.end.ended_ms
    return CountedJob(
        job.kind,
        began_ms,
        ended_ms,
        result.state is JobState.SUCCEEDED,
        result.end is not None,
        usage.cpu_sec,
        usage.mem_gbs,
        usage.disk_io_mb,
    )
