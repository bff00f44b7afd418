"""Names of the kinds of op that the mesh itself has; those of jobs and owners are next to their readers."""

from __future__ import annotations

from typing import Final

from vox_mesh.model.jobs.question import ANSWER, ESCALATE
from vox_mesh.model.jobs.records import INFERENCE, JOB_OPS
from vox_mesh.model.jobs.steps.suspension import WAKE, WAKE_EARLY
from vox_mesh.model.nodes.liveness import REMOVE_NODE
from vox_mesh.model.nodes.store_memory import ROLLED_BACK
from vox_mesh.model.oplog.authorship import OPEN_CHAIN
from vox_mesh.model.oplog.chain import ANCHOR, SEAL
from vox_mesh.model.oplog.deletion import DELETE
from vox_mesh.model.oplog.segment import ARCHIVE
from vox_mesh.model.oplog.verification import (
    ADMIT_NODE,
    APPROVE,
    DELEGATE,
    DENY,
    INITIALISE,
    OWNER_GRANTS,
    REQUEST,
    TRANSFER,
    TRUST_SCOPE,
)
from vox_mesh.model.retention.ops import PRUNE, SET_RETENTION

RESTORE: Final = "RestoreBackup"
BREAK: Final = "BreakLock"
APPLY: Final = "ApplyDeferred"
DROP: Final = "DropDeferred"
RESOLVE: Final = "ResolveConflict"
OFFER: Final = "OfferOwnership"
SET_TEMPO: Final = "SetTempo"
TEMPO_DECISION: Final = "TempoDecision"
DECLARE_INCIDENT: Final = "DeclareIncident"
CLEAR_INCIDENT: Final = "ClearIncident"
END_PHRASE: Final = "EndPhrase"
CHARGE: Final = "ChargeTokens"
CLOCK_STEPPED: Final = "DatabaseClockStepped"
ACCESS_REFUSED: Final = "AccessRefused"
ADD_CRON: Final = "AddCron"
REMOVE_CRON: Final = "RemoveCron"
ADOPT_CRONS: Final = "AdoptCrons"
ADD_RULE: Final = "AddRule"
REMOVE_RULE: Final = "RemoveRule"
SET_KIND: Final = "SetKind"
DRAIN_NODE: Final = "DrainNode"
UNDRAIN_NODE: Final = "UndrainNode"
SET_BUDGET: Final = "SetBudget"
REMOVE_BUDGET: Final = "RemoveBudget"

MESH_KINDS: Final = (
    *(ADD_RULE, REMOVE_RULE, SET_RETENTION, PRUNE),
    *(ADD_CRON, REMOVE_CRON, ADOPT_CRONS, REMOVE_NODE, TRANSFER, OFFER),
    *(DELEGATE, ADMIT_NODE, TRUST_SCOPE, *OWNER_GRANTS),
    *(REQUEST, APPROVE, DENY),
    *(ANSWER, ESCALATE, WAKE, WAKE_EARLY, INFERENCE, SET_KIND),
    *(DRAIN_NODE, UNDRAIN_NODE, SET_BUDGET, REMOVE_BUDGET),
    *(
        ANCHOR,
        ARCHIVE,
        DELETE,
        INITIALISE,
        OPEN_CHAIN,
        BREAK,
        APPLY,
        DROP,
        RESOLVE,
        SET_TEMPO,
        TEMPO_DECISION,
        ROLLED_BACK,
    ),
)
"""Kinds of op that only the services of the mesh write."""

ENDING_KINDS: Final = (
    *(SEAL, END_PHRASE, CHARGE, CLOCK_STEPPED, DECLARE_INCIDENT, CLEAR_INCIDENT, ACCESS_REFUSED),
)
"""Such kinds that a node whose clock is off may write, too."""

INTERNAL_KINDS: Final = frozenset((*MESH_KINDS, *ENDING_KINDS, *JOB_OPS))
"""Kinds of op that users can not author."""
