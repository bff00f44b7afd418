"""All that is played, and all that must hold of it."""

from __future__ import annotations

from typing import Final

from proof.scene import Workload
from proof.verdicts import Check

WORKLOADS: Final[tuple[Workload, ...]] = ()

CHECKS: Final[tuple[Check, ...]] = ()
