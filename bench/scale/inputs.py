"""The inputs of the model: what one operation costs, as measured on a real server."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

FILE: Final = Path(__file__).resolve().parents[2] / "docs" / "project" / "scale.json"
"""The published measurement."""

JOB: Final = "job"
MESSAGE: Final = "message"
LOCK: Final = "lock pair"
IDLE: Final = "idle node"


@dataclass(frozen=True, slots=True)
class OperationCost:
    """What one operation costs; of an idle node, one second."""

    server_cpu_s: float
    node_cpu_s: float
    log_bytes: float
    """Bytes of the log, which go to each replica."""
    rows_read: float
    rows_written: float
    stored_bytes: float


@dataclass(frozen=True, slots=True)
class RelayCost:
    """The measurement of a thousand agents: how busy each part was, and how late messages were."""

    agents: int
    nodes: int
    seconds: float
    messages: int
    relayed: int
    server_cores: float
    """Cores that the server took."""
    node_cores: float
    """Cores that all nodes took together."""
    log_bytes_s: float
    delay_p50_ms: float
    delay_p99_ms: float


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that was measured, on which machine."""

    machine: str
    load: float
    operations: dict[str, OperationCost]
    relay: RelayCost

    @classmethod
    def load_file(cls, path: Path = FILE) -> Self:
        """Return the inputs in a file."""
        found: dict[str, Any] = json.loads(path.read_text())
        costs = {name: OperationCost(**each) for name, each in found["operations"].items()}
        return cls(found["machine"], found["load"], costs, RelayCost(**found["relay"]))

    def save(self, path: Path = FILE) -> None:
        """Write the inputs to a file."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")
