"""A month in short: the database stops growing, and everything in it is verified."""

from __future__ import annotations

from pathlib import Path

import pytest

from proof.month.run import run_month
from tests.support.running.lengths import SOAK

_DAYS = 30 if SOAK else 5
_SHARE = 0.002 if SOAK else 0.0001


@pytest.mark.soak
@pytest.mark.timeout(3_600 if SOAK else 120)
async def test_a_month_of_work_leaves_few_days_of_rows_and_a_log_that_is_verified(tmp_path: Path) -> None:
    month = await run_month(tmp_path, _DAYS, _SHARE)
    assert month.faults == []
    last, a_day = month.days[-1].rows, month.jobs_done // _DAYS
    assert last["jobs"] <= 3 * a_day
    assert last["a2a_messages"] <= 2 * a_day + 1
    assert last["job_artifacts"] <= 3 * a_day
    assert month.entries_deleted > 0
    assert month.days[-1].rows["jobs"] <= month.days[2].rows["jobs"] + 1
