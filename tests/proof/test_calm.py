"""Where nothing goes wrong but a death, no judge finds a fault, and all of them have something to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from proof.judge import evaluate_all
from proof.workloads.beats import BEATS
from proof.workloads.jobs import JOBS
from proof.workloads.messages import MESSAGES
from proof.workloads.oplog import OPLOG
from tests.proof.calm import run_calmly

_SEEN: Final = {
    *("one-end", "one-completion", "claims-apart", "jobs-submitted-once"),
    *("messages-acked", "messages-once", "messages-in-order"),
    *("chains-whole", "chains-complete", "heads-kept", "downbeats-once", "integrity"),
}


def test_a_calm_run_in_which_a_player_dies_is_all_right(tmp_path: Path) -> None:
    said = evaluate_all(run_calmly(tmp_path, JOBS, MESSAGES, OPLOG, BEATS, seconds=45.0))
    assert [str(each) for each in said if not each.holds] == []
    assert {each.name for each in said if each.looks} >= _SEEN
