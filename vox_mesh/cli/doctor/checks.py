"""Checks: functions that each examine one thing and return a result."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from vox_mesh.errors import MeshError
from vox_mesh.model.nodes.node_address import SignedAddress
from vox_mesh.settings import Settings
from vox_mesh.store.engine import Engine
from vox_mesh.views.overview import Overview
from vox_mesh.views.rhythm import AgreementView


class CheckState(StrEnum):
    """The verdict of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The finding of a check, and advice."""

    state: CheckState
    found: str
    advice: str = ""
    check: str = ""
    cause: MeshError | None = None

    @classmethod
    def of(cls, error: MeshError, check: str = "") -> CheckResult:
        """Return the result of a check that raised an error."""
        return cls(CheckState.FAIL, " ".join(str(error).split()), error.hint, check, error)

    def as_record(self) -> dict[str, Any]:
        """Return the record to print."""
        return {"check": self.check, "state": self.state.value, "found": self.found, "advice": self.advice}


def ok(found: str) -> CheckResult:
    """Return a result without a problem."""
    return CheckResult(CheckState.OK, found)


def warn(found: str, advice: str) -> CheckResult:
    """Return a result that works but needs attention."""
    return CheckResult(CheckState.WARN, found, advice)


def fail(found: str, advice: str) -> CheckResult:
    """Return a result that does not work."""
    return CheckResult(CheckState.FAIL, found, advice)


@dataclass
class CheckContext:
    """The input of checks. Local checks have settings and variables only."""

    settings: Settings
    environment: Mapping[str, str]
    engine: Engine = field(init=False)
    """The database; set once it is open."""

    overview: Overview = field(init=False)
    """The state of the mesh; set once the database was reached."""

    is_strict: bool = field(init=False)
    """Whether the owner has made the mesh strict; set once the database was reached."""

    addresses: dict[str, SignedAddress] = field(init=False)
    """The address of each node's service that the node has signed; set once the database was reached."""

    forged: list[str] = field(init=False)
    """The nodes whose address is not signed by them; set once the database was reached."""

    held_back: dict[str, str] = field(init=False)
    """Why no worker claims some ready jobs, by their ids; set once the database was reached."""

    agreement: AgreementView = field(init=False)
    """The agreement of nodes on the tempo policy; set once the database was reached."""


class DoctorCheck(Protocol):
    """Examines one thing; returns `None` if it does not apply to this backend."""

    __name__: str

    def __call__(self, context: CheckContext) -> Awaitable[CheckResult | None]:
        """Run the check."""


async def run_checks(context: CheckContext, checks: Iterable[DoctorCheck]) -> list[CheckResult]:
    """Run the checks in order; a check that raises has failed."""
    results: list[CheckResult] = []
    for check in checks:
        try:
            result = await check(context)
        except MeshError as error:
            result = CheckResult.of(error)
        except OSError as error:
            result = fail(str(error), "check that the folder exists and is readable")
        if result is not None:
            results.append(replace(result, check=check.__name__))
    return results
