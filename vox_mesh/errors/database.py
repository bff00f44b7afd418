"""Errors about the database: it can't be reached, used or opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vox_mesh.errors.base import BadSettings, MeshError
from vox_mesh.errors.scripts import OutcomeUnknown, Overloaded


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


class DatabaseClockJumped(DatabaseUnavailable):
    """The database's clock jumped: no lease is granted or expires until the nodes agree on the jump."""

    code = "database_clock_jumped"


class UpgradeRefused(MeshError):
    """The server answers, but not over WebSocket."""

    code = "upgrade_refused"


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


class DriverMissing(BadSettings):
    """The chosen driver is an extra that is not installed."""

    code = "driver_missing"


class StoreClosed(MeshError):
    """The store was closed before the call."""

    code = "store_closed"


class BackupRefused(MeshError):
    """A backup or restore would overwrite something, or its file can't be used."""

    code = "backup_refused"


AWAY: Final = (DatabaseUnavailable, OutcomeUnknown, Overloaded)
"""The database could not be reached, or did not answer in time."""
