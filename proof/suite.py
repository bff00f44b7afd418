"""All workloads, and all checks."""

from __future__ import annotations

from typing import Final

from proof.checkers.approvals import APPROVAL_CHECKS
from proof.checkers.archives import ARCHIVE_CHECKS
from proof.checkers.backups import BACKUP_CHECKS
from proof.checkers.beats import BEAT_CHECKS
from proof.checkers.counters import COUNTER_CHECKS
from proof.checkers.crons import CRON_CHECKS
from proof.checkers.database import DATABASE_CHECKS
from proof.checkers.dependencies import DEPENDENCY_CHECKS
from proof.checkers.effects import EFFECT_CHECKS
from proof.checkers.fuzzers import FUZZER_CHECKS
from proof.checkers.grants import GRANT_CHECKS
from proof.checkers.handouts import HANDOUT_CHECKS
from proof.checkers.jobs import JOB_CHECKS
from proof.checkers.liveness import LIVENESS_CHECKS
from proof.checkers.locks import LOCK_CHECKS
from proof.checkers.messages import MESSAGE_CHECKS
from proof.checkers.mixed_versions import MIXED_VERSION_CHECKS
from proof.checkers.oplog import OPLOG_CHECKS
from proof.checkers.phases import PHASE_CHECKS
from proof.checkers.probes import PROBE_CHECKS
from proof.checkers.progress import PROGRESS_CHECKS
from proof.checkers.pruning import PRUNING_CHECKS
from proof.checkers.rules import RULE_CHECKS
from proof.checkers.spares import SPARE_CHECKS
from proof.checkers.spending import SPENDING_CHECKS
from proof.checkers.steps import STEP_CHECKS
from proof.checkers.tasks import TASK_CHECKS
from proof.checkers.waits import WAIT_CHECKS
from proof.verdicts import Check
from proof.workload import Workload
from proof.workloads.approvals import APPROVALS
from proof.workloads.archiving import ARCHIVING
from proof.workloads.backups import BACKING_UP
from proof.workloads.beats import BEATS
from proof.workloads.consumers import CONSUMERS
from proof.workloads.counters import COUNTERS
from proof.workloads.effects import EFFECTS
from proof.workloads.fan_in import FAN_IN
from proof.workloads.grants import GRANTS
from proof.workloads.jobs import JOBS
from proof.workloads.limits import LIMITS
from proof.workloads.locks import LOCKS
from proof.workloads.looks import LOOKS
from proof.workloads.messages import MESSAGES
from proof.workloads.oplog import OPLOG
from proof.workloads.phases import PHASES
from proof.workloads.pruning import PRUNING
from proof.workloads.rules import RULES
from proof.workloads.spares import SPARES
from proof.workloads.spending import SPENDING
from proof.workloads.steps import STEPS
from proof.workloads.tasks import TASKS
from proof.workloads.waits import WAITS
from proof.workloads.writes import WRITES

WORKLOADS: Final[tuple[Workload, ...]] = (
    *(LOCKS, COUNTERS, EFFECTS, WRITES, LOOKS),
    *(JOBS, MESSAGES, OPLOG, BEATS),
)

OPTIONAL_WORKLOADS: Final[tuple[Workload, ...]] = (
    *(CONSUMERS, PHASES, RULES, APPROVALS, SPENDING, GRANTS, LIMITS, TASKS, PRUNING, STEPS, SPARES),
    *(FAN_IN, ARCHIVING, BACKING_UP, WAITS),
)
"""Simulation runs these only by name, so that its seeds stay the same runs. Chaos runs them all."""

CHECKS: Final[tuple[Check, ...]] = (
    *LOCK_CHECKS,
    *COUNTER_CHECKS,
    *EFFECT_CHECKS,
    *LIVENESS_CHECKS,
    *SPARE_CHECKS,
    *PROGRESS_CHECKS,
    *PROBE_CHECKS,
    *JOB_CHECKS,
    *CRON_CHECKS,
    *RULE_CHECKS,
    *PRUNING_CHECKS,
    *MIXED_VERSION_CHECKS,
    *SPENDING_CHECKS,
    *APPROVAL_CHECKS,
    *TASK_CHECKS,
    *STEP_CHECKS,
    *WAIT_CHECKS,
    *GRANT_CHECKS,
    *MESSAGE_CHECKS,
    *HANDOUT_CHECKS,
    *OPLOG_CHECKS,
    *ARCHIVE_CHECKS,
    *BACKUP_CHECKS,
    *DEPENDENCY_CHECKS,
    *BEAT_CHECKS,
    *PHASE_CHECKS,
    *DATABASE_CHECKS,
    *FUZZER_CHECKS,
)
