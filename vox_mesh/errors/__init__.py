"""The one error family. Each face (command line, HTTP) maps it once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from vox_mesh.errors.base import AlreadyResolved as AlreadyResolved
from vox_mesh.errors.base import ApprovalNeeded as ApprovalNeeded
from vox_mesh.errors.base import ApprovalPending as ApprovalPending
from vox_mesh.errors.base import BadAddress as BadAddress
from vox_mesh.errors.base import BadBudget as BadBudget
from vox_mesh.errors.base import BadDocument as BadDocument
from vox_mesh.errors.base import BadManifest as BadManifest
from vox_mesh.errors.base import BadPolicy as BadPolicy
from vox_mesh.errors.base import BadScore as BadScore
from vox_mesh.errors.base import BadSettings as BadSettings
from vox_mesh.errors.base import BadStatement as BadStatement
from vox_mesh.errors.base import BadValue as BadValue
from vox_mesh.errors.base import BadWorkflow as BadWorkflow
from vox_mesh.errors.base import ConstraintFailed as ConstraintFailed
from vox_mesh.errors.base import IllegalTransition as IllegalTransition
from vox_mesh.errors.base import LimitReached as LimitReached
from vox_mesh.errors.base import MeshError as MeshError
from vox_mesh.errors.base import NodeRefused as NodeRefused
from vox_mesh.errors.base import NotGranted as NotGranted
from vox_mesh.errors.base import NotJson as NotJson
from vox_mesh.errors.base import NotKnown as NotKnown
from vox_mesh.errors.base import OverGrantBudget as OverGrantBudget
from vox_mesh.errors.base import RateExceeded as RateExceeded
from vox_mesh.errors.base import Refused as Refused
from vox_mesh.errors.base import RowMoved as RowMoved
from vox_mesh.errors.base import ScriptFailed as ScriptFailed
from vox_mesh.errors.base import StaleClaim as StaleClaim
from vox_mesh.errors.base import StaleFence as StaleFence
from vox_mesh.errors.base import TooLarge as TooLarge
from vox_mesh.errors.base import TooManyOpen as TooManyOpen
from vox_mesh.errors.base import UnreadableText as UnreadableText
from vox_mesh.errors.base import UpgradeRefused as UpgradeRefused
from vox_mesh.errors.base import refused as refused


class Contended(MeshError):
    """Every attempt lost to a concurrent write of the row: it has no effect."""

    code = "contended"
    retryable = True


class MergeClash(MeshError):
    """Both sides changed the same `columns`, or one of them deleted the row: nothing can be merged."""

    code = "merge_clash"

    def __init__(self, message: str, *, columns: Sequence[str], hint: str) -> None:
        super().__init__(message, hint=hint)
        self.columns = tuple(columns)


class OutcomeUnknown(MeshError):
    """The write may or may not have been applied: no answer came in time, or the disk failed at the commit.

    Sending the same script again, under the same `key`, is safe and returns its outcome.
    """

    code = "outcome_unknown"
    retryable = True

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message, hint="send it again under the same key to learn the outcome")
        self.key = key


class Overloaded(MeshError):
    """The deadline passed before there was room to send the script: it has no effect."""

    code = "overloaded"
    retryable = True


# --- faults of the database -----------------------------------------------------------------------


class DatabaseUnavailable(MeshError):
    """The database can't be used at the moment. Except for `NoAnswer`, nothing was applied."""

    code = "database_unavailable"
    retryable = True


class Unreachable(DatabaseUnavailable):
    """No connection could be made, so nothing was sent."""

    code = "unreachable"


class ServerFull(Unreachable):
    """The server closed the connection because its limit of open streams is reached."""

    code = "server_full"


class NoAnswer(DatabaseUnavailable):
    """No answer came to a request: its outcome is unknown until it is sent again."""

    code = "no_answer"


class CircuitOpen(DatabaseUnavailable):
    """The circuit breaker is open: the call was not tried."""

    code = "circuit_open"


class DatabaseBusy(DatabaseUnavailable):
    """Another writer held the database until the deadline."""

    code = "database_busy"


class DatabaseFault(MeshError):
    """The database itself failed (disk full, I/O error, damaged file)."""

    code = "database_fault"


class DatabaseNotOpened(DatabaseFault):
    """The database file can't be opened or created, such as in a folder that can't be written."""

    code = "database_not_opened"


class Unauthorized(MeshError):
    """The server refused the token, or the token may not write."""

    code = "unauthorized"


class SyncRefused(MeshError):
    """The server does not push its log, so no replica can follow it."""

    code = "sync_refused"


class ReplicaOff(MeshError):
    """The replica can't be used: its file belongs to another database or is in use, or the disk is full."""

    code = "replica_off"


class SchemaTooNew(MeshError):
    """The database was written by a newer version that this one can't work with."""

    code = "schema_too_new"


class SchemaDiffers(MeshError):
    """The database does not match its schema version: an object is missing or differs."""

    code = "schema_differs"

    def __init__(self, message: str, *, differences: Sequence[str], hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.differences = tuple(differences)


class WrongBackend(MeshError):
    """The file at `VOX_DB_PATH` is not a database that this backend may use."""

    code = "wrong_home"


class ForeignDatabase(WrongBackend):
    """The database holds tables of another application, and no mesh."""

    code = "foreign_database"


class SpoolFull(MeshError):
    """The database is unreachable and the spool is full: the write was not stored."""

    code = "spool_full"
    retryable = True


class NodeInUse(MeshError):
    """Another live process, with another folder, is this node."""

    code = "node_in_use"


class KeyRefused(MeshError):
    """This node is registered with another key."""

    code = "key_refused"


class NodeNotAdmitted(KeyRefused):
    """The mesh is strict, and its owner has not admitted this node."""

    code = "node_not_admitted"


class NotStrict(MeshError):
    """This process requires a strict mesh, and the owner has not made it so."""

    code = "mesh_not_strict"

    def __init__(self) -> None:
        super().__init__(
            "the mesh is not strict, and VOX_MESH_STRICT requires it",
            hint="have the owner run `vox-mesh grant strict on`, or start its node with VOX_MESH_STRICT=1",
        )


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


class DatabaseClockJumped(DatabaseUnavailable):
    """The database's clock jumped: no lease is granted or expires until the nodes agree on the jump."""

    code = "database_clock_jumped"


class ArtifactMissing(NotKnown):
    """The content of an artifact is not here; `node_id` is the node that should have it, if one is known."""

    code = "artifact_missing"

    def __init__(self, message: str, *, node_id: str | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.node_id = node_id


class TakenElsewhere(MeshError):
    """A job was taken through another node, `node_id`: only that one can sign for its claim."""

    code = "taken_elsewhere"

    def __init__(self, message: str, *, node_id: str) -> None:
        super().__init__(message, hint=f"send the request to {node_id}: only the claiming node can sign")
        self.node_id = node_id


class NotItsAgent(MeshError):
    """A job, lock, message or question is of another agent than the acting one."""

    code = "not_its_agent"


class JobNotSucceeded(MeshError):
    """A job has no result: it has failed, was aborted, or has not ended."""

    code = "job_not_succeeded"


class NotAuthentic(MeshError):
    """The table of jobs says what no signed op in the log says."""

    code = "not_authentic"


class ArtifactDamaged(MeshError):
    """The stored content of an artifact does not match its hash."""

    code = "artifact_damaged"


class ArtifactNotKept(MeshError):
    """An artifact could not be written: the disk is full, or the folder can't be used."""

    code = "artifact_not_kept"


class LockHeld(MeshError):
    """The lock was not acquired: another agent holds it, or waits for it ahead of this one.

    `holders` are records of those who do hold it.
    """

    code = "lock_held"
    retryable = True

    def __init__(self, message: str, holders: Sequence[Any] = (), *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.holders = holders


class LockLost(MeshError):
    """The lease of a held lock ended: another holder may be using what it protects."""

    code = "lock_lost"


class NotHolder(MeshError):
    """The message can't be acknowledged or rejected: its lease ended, or another consumer has it."""

    code = "not_holder"


class MessageTaken(MeshError):
    """Another message has this id."""

    code = "message_taken"


class SenderRefused(MeshError):
    """The signature of a message is not by the node that it names, or no key of that node is known."""

    code = "sender_refused"


class AgentSignatureMissing(MeshError):
    """The mesh is strict, and the sender of a message, which has a key, has not signed it: it is not sent."""

    code = "agent_signature_missing"

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"message of {agent} is not signed by its key, as a strict mesh requires",
            hint=f"send it with the key of {agent}: set VOX_AGENT_KEY, or pass signed_by",
        )


class AgentSignatureWrong(MeshError):
    """The mesh is strict, and a message is not signed by the key of its sender: it is not sent."""

    code = "agent_signature_wrong"

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"signature of the message is not by the key with which {agent} was admitted",
            hint="sign the id, the recipient, the type and the body as they are sent, or admit the new key",
        )


class MessageExpired(MeshError):
    """A message arrived after it expired, or was sent too long ago."""

    code = "message_expired"


class ThreadClosed(MeshError):
    """The help thread is closed. `state` is its final state; `on_fail` is what to do instead."""

    code = "thread_closed"

    def __init__(self, message: str, *, state: str, on_fail: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.state, self.on_fail = state, on_fail


class NotHelper(MeshError):
    """The sender is not the agent that promised help in this thread."""

    code = "not_helper"


class WaitExhausted(MeshError):
    """A phrase has used up its wait budget. `fallback` is what its score says to do instead."""

    code = "wait_exhausted"

    def __init__(self, message: str, *, budget: str, fallback: str | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.budget, self.fallback = budget, fallback


class PhaseOverrun(MeshError):
    """A phase has used up its beats."""

    code = "phase_overrun"

    def __init__(self, message: str, *, phase: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.phase = phase


class PhraseDeferred(PhaseOverrun):
    """A phase has used up its beats, and the task continues in another phrase."""

    code = "phrase_deferred"
    retryable = True


class OverBudget(MeshError):
    """The work has used up its budget."""

    code = "over_budget"


class RelayFailed(MeshError):
    """A node could not be reached over HTTP, or could not accept a message for now."""

    code = "relay_failed"
    retryable = True


class RelayRefused(MeshError):
    """A node rejects a relayed message for good."""

    code = "relay_refused"


class SlotInUse(MeshError):
    """Another live process has this identity."""

    code = "slot_in_use"


class DriverMissing(BadSettings):
    """The chosen driver is an extra that is not installed."""

    code = "driver_missing"


class StoreClosed(MeshError):
    """The store was closed before the call."""

    code = "store_closed"


class WrongThread(MeshError):
    """A blocking call was made in the thread of the event loop that it would wait for."""

    code = "wrong_thread"


class ExportRefused(MeshError):
    """An export of the log would overwrite something, or its file was damaged."""

    code = "export_refused"


class BackupRefused(MeshError):
    """A backup or restore would overwrite something, or its file can't be used."""

    code = "backup_refused"


AWAY: Final = (DatabaseUnavailable, OutcomeUnknown, Overloaded)
"""The database could not be reached, or did not answer in time."""
