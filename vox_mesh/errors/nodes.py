"""Errors about nodes: their identities, keys, clocks and logs."""

from __future__ import annotations

from vox_mesh.errors.base import MeshError


class NodeInUse(MeshError):
    """Another live process, with another folder, is this node."""

    code = "node_in_use"


class SlotInUse(MeshError):
    """Another live process has this identity."""

    code = "slot_in_use"


class KeyRefused(MeshError):
    """This node is registered with another key."""

    code = "key_refused"


class NodeNotAdmitted(KeyRefused):
    """The mesh is strict, and its owner has not admitted this node."""

    code = "node_not_admitted"


class NodeRefused(MeshError):
    """The node refused a request of its client. `problem` is the code of the refusal."""

    code = "node_refused"

    def __init__(self, message: str, *, problem: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.problem = problem


class StaleIncarnation(MeshError):
    """This incarnation was superseded: its writes are rejected."""

    code = "stale_incarnation"


class ChainBroken(MeshError):
    """This node's log was changed: entries are missing, or there is one that it did not write."""

    code = "chain_broken"


class ClockOff(MeshError):
    """This machine's clock is too far from the database's clock: it may not author ops."""

    code = "clock_off"
    retryable = True


class ExportRefused(MeshError):
    """An export of the log would overwrite something, or its file was damaged."""

    code = "export_refused"


class ArchiveFailed(MeshError):
    """The archive of the log, or a backup, can't be read or written, or is not what was stored."""

    code = "archive_failed"
