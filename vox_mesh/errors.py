"""The one error family. Each face (command line, HTTP) maps it once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from vox_mesh.base_errors import BadAddress as BadAddress
from vox_mesh.base_errors import BadBudget as BadBudget
from vox_mesh.base_errors import BadDocument as BadDocument
from vox_mesh.base_errors import BadManifest as BadManifest
from vox_mesh.base_errors import BadPolicy as BadPolicy
from vox_mesh.base_errors import BadScore as BadScore
from vox_mesh.base_errors import BadSettings as BadSettings
from vox_mesh.base_errors import BadValue as BadValue
from vox_mesh.base_errors import MeshError as MeshError

# --- what a script can end in -------------------------------------------------------------------


class ScriptFailed(MeshError):
    """The script was rolled back and has no effect. `statement` is the index of the one that failed."""

    code = "script_failed"

    def __init__(self, message: str, *, statement: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.statement = statement


class ConstraintFailed(ScriptFailed):
    """A constraint of the schema said no."""

    code = "constraint_failed"


class BadStatement(ScriptFailed):
    """The database could not run a statement: a fault in the program, not in the data."""

    code = "bad_statement"


class TooLarge(ScriptFailed):
    """A request, or the answer to it, is larger than the server allows."""

    code = "too_large"


class Refused(ScriptFailed):
    """A guard did not hold. `reason` is the guard's own code, such as `stale_fence`."""

    code = "refused"

    def __init__(self, reason: str, *, statement: int) -> None:
        super().__init__(f"refused: {reason}", statement=statement)
        self.reason = reason


class StaleFence(Refused):
    """The hold that a write was made under is over, or somebody else's by now: nothing was written."""

    code = "stale_fence"

    def __init__(self, reason: str = code, *, statement: int = 0) -> None:
        super().__init__(reason, statement=statement)
        self.hint = "acquire the lock again, and look at what it protects before writing"


class StaleClaim(Refused):
    """The claim that a job was worked on under is over, or was never made: nothing was written."""

    code = "stale_claim"


class IllegalTransition(Refused):
    """The job's state does not allow it."""

    code = "illegal_transition"


_KINDS_OF_REFUSAL: Mapping[str, type[Refused]] = {
    kind.code: kind for kind in (StaleFence, StaleClaim, IllegalTransition)
}


def refused(reason: str, *, statement: int) -> Refused:
    """The error for a guard's reason: a class of its own, where callers want to tell it from others."""
    return _KINDS_OF_REFUSAL.get(reason, Refused)(reason, statement=statement)


class RowMoved(ScriptFailed):
    """The row is no longer the one that was decided on. `now` is what it is; `None`: it is gone."""

    code = "row_moved"

    def __init__(self, message: str, *, now: Mapping[str, Any] | None, statement: int, hint: str) -> None:
        super().__init__(message, statement=statement, hint=hint)
        self.now = now


class AlreadyResolved(ScriptFailed):
    """Somebody has resolved this conflict before."""

    code = "already_resolved"


class Contended(MeshError):
    """Others wrote the row each time this was tried: it has no effect."""

    code = "contended"
    retryable = True


class MergeClash(MeshError):
    """Both sides changed the same `columns`, or one of them deleted the row: nothing can be merged."""

    code = "merge_clash"

    def __init__(self, message: str, *, columns: Sequence[str], hint: str) -> None:
        super().__init__(message, hint=hint)
        self.columns = tuple(columns)


class OutcomeUnknown(MeshError):
    """It may or may not have taken effect: no answer came in time, or the disk failed in the commit.

    Sending the same script again, under the same `key`, is safe and tells which.
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


# --- what can be wrong with the database --------------------------------------------------------


class DatabaseUnavailable(MeshError):
    """The database can't be used at the moment. Nothing was applied."""

    code = "database_unavailable"
    retryable = True


class Unreachable(DatabaseUnavailable):
    """No connection could be made, so nothing was sent."""

    code = "unreachable"


class ServerFull(Unreachable):
    """The server closed the connection because its limit of open streams is reached."""

    code = "server_full"


class UpgradeRefused(MeshError):
    """The server answers, but not over WebSocket."""

    code = "upgrade_refused"


class NoAnswer(DatabaseUnavailable):
    """A request was sent and its answer did not come: its effect is unknown until it is sent again."""

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


class Unauthorized(MeshError):
    """The server refused the token, or the token may not write."""

    code = "unauthorized"


class SyncRefused(MeshError):
    """The server does not push its log, so that no replica of ours can follow it."""

    code = "sync_refused"


class ReplicaOff(MeshError):
    """The replica can't be used here: its file is not ours, in use, or the disk is full."""

    code = "replica_off"


class SchemaTooNew(MeshError):
    """The database was written by a newer version that this one can't work with."""

    code = "schema_too_new"


class SchemaDiffers(MeshError):
    """The database lacks something that its schema version stands for, or has it in another shape."""

    code = "schema_differs"

    def __init__(self, message: str, *, differences: Sequence[str], hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.differences = tuple(differences)


class WrongHome(MeshError):
    """The file at `VOX_DB_PATH` is not a database that this home may use."""

    code = "wrong_home"


class SpoolFull(MeshError):
    """The database is away and the local spool has reached its bound: the write was not kept."""

    code = "spool_full"
    retryable = True


class NodeInUse(MeshError):
    """Another live process, in another place, is this node."""

    code = "node_in_use"


class KeyRefused(MeshError):
    """This node is known with another key."""

    code = "key_refused"


class StaleIncarnation(MeshError):
    """A newer process has become this node: nothing that this one writes is accepted any more."""

    code = "stale_incarnation"


class ChainBroken(MeshError):
    """This node's log is not as it left it: entries are gone, or there is one that it did not write."""

    code = "chain_broken"


class ClockOff(MeshError):
    """This machine's clock is so far from the database's that nothing new may be authored by it."""

    code = "clock_off"
    retryable = True


class DatabaseClockJumped(DatabaseUnavailable):
    """The database's clock was set: nothing is granted or expires until the nodes have agreed on that."""

    code = "database_clock_jumped"


class NotKnown(MeshError):
    """There is no such node, op or key."""

    code = "not_known"


class ArtifactMissing(NotKnown):
    """The content of an artifact is not here; `node_id` is the node that should have it, if one is known."""

    code = "artifact_missing"

    def __init__(self, message: str, *, node_id: str | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.node_id = node_id


class ArtifactDamaged(MeshError):
    """What is kept as an artifact is not the content that its hash says."""

    code = "artifact_damaged"


class ArtifactNotKept(MeshError):
    """An artifact could not be written: the disk is full, or the folder can't be used."""

    code = "artifact_not_kept"


class LockHeld(MeshError):
    """The lock was not acquired: somebody else holds it, or waits for it before us.

    `holders` are records of those who do hold it.
    """

    code = "lock_held"
    retryable = True

    def __init__(self, message: str, holders: Sequence[Any] = (), *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.holders = holders


class LockLost(MeshError):
    """The lease of a lock ended while it was needed: whatever it protects may be another's by now."""

    code = "lock_lost"


class NotHolder(MeshError):
    """The message is not ours to acknowledge or give back: its lease is over, or it is another's by now."""

    code = "not_holder"


class MessageTaken(MeshError):
    """Another message has this id."""

    code = "message_taken"


class SenderRefused(MeshError):
    """A message is not from the node that it names, or no key is known of that node."""

    code = "sender_refused"


class MessageExpired(MeshError):
    """A message came when it was of no use any more: its time is over, or it was sent long ago."""

    code = "message_expired"


class ThreadClosed(MeshError):
    """Nothing more is said in a thread of help. `state` is what came of it; `on_fail` what to do instead."""

    code = "thread_closed"

    def __init__(self, message: str, *, state: str, on_fail: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.state, self.on_fail = state, on_fail


class NotHelper(MeshError):
    """Who speaks is not who has promised help in this thread."""

    code = "not_helper"


class WaitExhausted(MeshError):
    """A phrase has waited all the beats that it may. `fallback` is what its score says to do instead."""

    code = "wait_exhausted"

    def __init__(self, message: str, *, budget: str, fallback: str | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.budget, self.fallback = budget, fallback


class PhaseOverrun(MeshError):
    """A phase has taken all its beats."""

    code = "phase_overrun"

    def __init__(self, message: str, *, phase: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.phase = phase


class PhraseDeferred(PhaseOverrun):
    """The same, but the task goes on in another phrase."""

    code = "phrase_deferred"
    retryable = True


class OverBudget(MeshError):
    """The work has used all that its budget allows."""

    code = "over_budget"


class RelayFailed(MeshError):
    """A node could not be reached over HTTP, or could not take a message now."""

    code = "relay_failed"
    retryable = True


class RelayRefused(MeshError):
    """A node does not take a message that was brought over HTTP, and will not another time."""

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
    """A call that blocks was made in the thread of the event loop that it would wait for."""

    code = "wrong_thread"


class ExportRefused(MeshError):
    """An export of the log would overwrite something, or its file was damaged."""

    code = "export_refused"


class BackupRefused(MeshError):
    """A backup or restore would overwrite something, or its file can't be used."""

    code = "backup_refused"


AWAY: Final = (DatabaseUnavailable, OutcomeUnknown, Overloaded)
"""The database could not be reached, or did not answer in time."""
