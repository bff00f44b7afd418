"""What a check is: a small function that looks at one thing and says how it stands."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol

from vox_mesh.errors import MeshError
from vox_mesh.settings import Settings
from vox_mesh.store.engine import Engine
from vox_mesh.views.overview import Overview
from vox_mesh.views.rhythm import AgreementView


class CheckState(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check found, and what to do about it."""

    state: CheckState
    found: str
    advice: str = ""
    check: str = ""
    cause: MeshError | None = None

    @classmethod
    def of(cls, error: MeshError, check: str = "") -> CheckResult:
        """A check that ended with an error."""
        return cls(CheckState.FAIL, " ".join(str(error).split()), error.hint, check, error)

    def as_record(self) -> dict[str, Any]:
        """As it is printed."""
        return {"check": self.check, "state": self.state.value, "found": self.found, "advice": self.advice}


def ok(found: str) -> CheckResult:
    """All is well."""
    return CheckResult(CheckState.OK, found)


def warn(found: str, advice: str) -> CheckResult:
    """It works, but should be seen to."""
    return CheckResult(CheckState.WARN, found, advice)


def fail(found: str, advice: str) -> CheckResult:
    """It does not work."""
    return CheckResult(CheckState.FAIL, found, advice)


@dataclass
class Patient:
    """What is examined."""

    settings: Settings
    environment: Mapping[str, str]
    _engine: Engine | None = None
    _scene: Overview | None = None
    _agreement: AgreementView | None = None

    @property
    def engine(self) -> Engine:
        """The database."""
        assert self._engine is not None, "local checks have no database"
        return self._engine

    @engine.setter
    def engine(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def scene(self) -> Overview:
        """The mesh as it was when the examination began."""
        assert self._scene is not None, "before the database was reached nothing is known of the mesh"
        return self._scene

    @scene.setter
    def scene(self, scene: Overview) -> None:
        self._scene = scene

    @property
    def agreement(self) -> AgreementView:
        """Whether nodes go by the same tempo policy."""
        assert self._agreement is not None, "before the database was reached nothing is known of tempos"
        return self._agreement

    @agreement.setter
    def agreement(self, agreement: AgreementView) -> None:
        self._agreement = agreement


class DoctorCheck(Protocol):
    """Looks at one thing; `None` means that there is nothing to look at on this home."""

    __name__: str

    def __call__(self, patient: Patient) -> Awaitable[CheckResult | None]:
        """Look."""


async def examine(patient: Patient, checks: Iterable[DoctorCheck]) -> list[CheckResult]:
    """Run the checks one after another; one that raises has failed."""
    findings: list[CheckResult] = []
    for check in checks:
        try:
            finding = await check(patient)
        except MeshError as error:
            finding = CheckResult.of(error)
        except OSError as error:
            finding = fail(str(error), "check that the folder is there and may be read")
        if finding is not None:
            findings.append(replace(finding, check=check.__name__))
    return findings
