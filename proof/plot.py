"""All that is played, and all that must hold of it."""

from __future__ import annotations

from typing import Final

from proof.checkers.beats import BEAT_CHECKS
from proof.checkers.crons import CRON_CHECKS
from proof.checkers.database import DATABASE_CHECKS
from proof.checkers.jobs import JOB_CHECKS
from proof.checkers.messages import MESSAGE_CHECKS
from proof.checkers.oplog import OPLOG_CHECKS
from proof.scene import Workload
from proof.verdicts import Check
from proof.workloads.beats import BEATS
from proof.workloads.jobs import JOBS
from proof.workloads.messages import MESSAGES
from proof.workloads.oplog import OPLOG

WORKLOADS: Final[tuple[Workload, ...]] = (JOBS, MESSAGES, OPLOG, BEATS)

CHECKS: Final[tuple[Check, ...]] = (
    *JOB_CHECKS,
    *CRON_CHECKS,
    *MESSAGE_CHECKS,
    *OPLOG_CHECKS,
    *BEAT_CHECKS,
    *DATABASE_CHECKS,
)
