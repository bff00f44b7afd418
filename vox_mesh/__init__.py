"""vox-mesh: many orchestrators, one database, no lost or doubled work."""

from __future__ import annotations

TYPE_CHECKING = False  # that of `typing`, which takes longer to import than all that a short command imports
if TYPE_CHECKING:
    from typing import Any, Final

    from vox_mesh.app import MeshApp
    from vox_mesh.errors import LockHeld, LockLost, MeshError, OutcomeUnknown, Refused, StaleFence
    from vox_mesh.jobs.worker.attempt import GiveUp, NeedsInput, Yield
    from vox_mesh.jobs.worker.context import JobContext
    from vox_mesh.jobs.worker.handlers import HandlerSet
    from vox_mesh.mesh import Mesh
    from vox_mesh.messages.relay_outbound import Auto, Local, Remote
    from vox_mesh.model.jobs.manifest import Manifest
    from vox_mesh.model.jobs.question import Question
    from vox_mesh.model.jobs.records import Job, JobState
    from vox_mesh.model.locks.records import Lock
    from vox_mesh.model.messages.records import Message
    from vox_mesh.observability.log_context import log_fields
    from vox_mesh.occ.conflicts import Conflict, Take
    from vox_mesh.occ.strategies import (
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
    from vox_mesh.oplog.op_kinds import OpKind
    from vox_mesh.runtime.loop import run
    from vox_mesh.runtime.open_store import Role, open_store
    from vox_mesh.settings import Settings, load_settings
    from vox_mesh.store import Answer, Change, Op, Outcome, Row, Rows, Script, Shape, Statement, Store, guard
    from vox_mesh.store.acting import acting_as

__all__ = [
    "Answer",
    "Auto",
    "Change",
    "Conflict",
    "ConflictRecorded",
    "DeferToAgent",
    "GiveUp",
    "HandlerSet",
    "Job",
    "JobContext",
    "JobState",
    "Local",
    "Lock",
    "LockHeld",
    "LockLost",
    "Manifest",
    "Manual",
    "Merge",
    "Merged",
    "Mesh",
    "MeshApp",
    "MeshError",
    "Message",
    "NeedsInput",
    "Op",
    "OpKind",
    "Outcome",
    "OutcomeUnknown",
    "Question",
    "Refused",
    "Remote",
    "Role",
    "Row",
    "Rows",
    "Script",
    "Settings",
    "Shape",
    "Skipped",
    "StaleFence",
    "Statement",
    "Store",
    "Take",
    "TakeLeft",
    "TakeRight",
    "Written",
    "Yield",
    "acting_as",
    "guard",
    "load_settings",
    "log_fields",
    "open_store",
    "run",
]

# Loaded when first asked for: a command, or the completion of one, does not pay for what it does not use.
_MODULES: Final = {
    "vox_mesh.occ.conflicts": ("Conflict", "Take"),
    "vox_mesh.oplog.op_kinds": ("OpKind",),
    "vox_mesh.occ.strategies": (
        "ConflictRecorded",
        "DeferToAgent",
        "Manual",
        "Merge",
        "Merged",
        "Skipped",
        "TakeLeft",
        "TakeRight",
        "Written",
    ),
    "vox_mesh.errors": ("LockHeld", "LockLost", "MeshError", "OutcomeUnknown", "Refused", "StaleFence"),
    "vox_mesh.jobs.worker.attempt": ("GiveUp", "NeedsInput", "Yield"),
    "vox_mesh.jobs.worker.context": ("JobContext",),
    "vox_mesh.model.jobs.question": ("Question",),
    "vox_mesh.jobs.worker.handlers": ("HandlerSet",),
    "vox_mesh.runtime.loop": ("run",),
    "vox_mesh.app": ("MeshApp",),
    "vox_mesh.mesh": ("Mesh",),
    "vox_mesh.messages.relay_outbound": ("Auto", "Local", "Remote"),
    "vox_mesh.model.jobs.records": ("Job", "JobState"),
    "vox_mesh.model.jobs.manifest": ("Manifest",),
    "vox_mesh.model.locks.records": ("Lock",),
    "vox_mesh.model.messages.records": ("Message",),
    "vox_mesh.observability.log_context": ("log_fields",),
    "vox_mesh.runtime.open_store": ("Role", "open_store"),
    "vox_mesh.settings": ("Settings", "load_settings"),
    "vox_mesh.store.acting": ("acting_as",),
    "vox_mesh.store": (
        "Answer",
        "Change",
        "Op",
        "Outcome",
        "Row",
        "Rows",
        "Script",
        "Shape",
        "Statement",
        "Store",
        "guard",
    ),
}
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}


_RENAMED: Final = {"GiveBack": "Yield"}
"""Deprecated names, and the ones that replace them."""


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        from vox_mesh.observability.deprecation import warn_renamed

        warn_renamed(f"vox_mesh.{name}", _RENAMED[name])
        return __getattr__(_RENAMED[name])
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    globals()[name] = found = getattr(import_module(_MODULE_OF[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
