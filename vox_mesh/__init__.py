"""vox-mesh: many orchestrators, one database, no lost or doubled work."""

from __future__ import annotations

from vox_mesh.coordination.conflicts import Conflict, Take
from vox_mesh.coordination.kinds import OpKind
from vox_mesh.coordination.strategies import (
    ConflictRecorded,
    DeferToAgent,
    Manual,
    Merge,
    Merged,
    Skipped,
    TakeLeft,
    TakeRight,
    Written,
)
from vox_mesh.errors import MeshError
from vox_mesh.jobs.attempt import GiveBack, GiveUp
from vox_mesh.jobs.context import JobContext
from vox_mesh.jobs.handlers import HandlerSet
from vox_mesh.mesh import Mesh
from vox_mesh.messages.outbox import Auto, Local, Remote
from vox_mesh.model.jobs import Job, JobState
from vox_mesh.model.manifest import Manifest
from vox_mesh.model.messages import Message
from vox_mesh.opening import Role, open_store
from vox_mesh.settings import Settings, load_settings
from vox_mesh.store import Answer, Change, Op, Outcome, Row, Rows, Script, Shape, Statement, Store, guard

__all__ = [
    "Answer",
    "Auto",
    "Change",
    "Conflict",
    "ConflictRecorded",
    "DeferToAgent",
    "GiveBack",
    "GiveUp",
    "HandlerSet",
    "Job",
    "JobContext",
    "JobState",
    "Local",
    "Manifest",
    "Manual",
    "Merge",
    "Merged",
    "Mesh",
    "MeshError",
    "Message",
    "Op",
    "OpKind",
    "Outcome",
    "Remote",
    "Role",
    "Row",
    "Rows",
    "Script",
    "Settings",
    "Shape",
    "Skipped",
    "Statement",
    "Store",
    "Take",
    "TakeLeft",
    "TakeRight",
    "Written",
    "guard",
    "load_settings",
    "open_store",
]
