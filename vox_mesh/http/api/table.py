"""All operations, in the order of the document."""

from __future__ import annotations

from typing import Final

from vox_mesh.http.api.budgets import BUDGETS
from vox_mesh.http.api.conflicts import CONFLICTS
from vox_mesh.http.api.crons import CRONS
from vox_mesh.http.api.database import DATABASE
from vox_mesh.http.api.job_actions import ACTIONS
from vox_mesh.http.api.jobs import JOBS
from vox_mesh.http.api.kinds import KINDS
from vox_mesh.http.api.locks import LOCKS
from vox_mesh.http.api.messages import MESSAGES
from vox_mesh.http.api.nodes import NODES
from vox_mesh.http.api.operations import Operation
from vox_mesh.http.api.oplog import OPLOG
from vox_mesh.http.api.rhythm import RHYTHM
from vox_mesh.http.api.roles import ROLES
from vox_mesh.http.api.workers import WORKERS

_TABLES: Final = (
    NODES,
    ROLES,
    LOCKS,
    OPLOG,
    CONFLICTS,
    MESSAGES,
    JOBS,
    ACTIONS,
    CRONS,
    KINDS,
    WORKERS,
    RHYTHM,
    BUDGETS,
    DATABASE,
)

ALL: Final[tuple[Operation, ...]] = tuple(operation for table in _TABLES for operation in table.all)
