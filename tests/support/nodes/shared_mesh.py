"""A mesh that many nodes share, each with a folder of its own, and what its log is asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.oplog.tampering import NOTE
from tools.homes import FILE, HomeCase
from tools.sqld import Server
from vox_mesh import Mesh, OpKind, Settings

_NEVER: Final = "1h"
LATER: Final = "9999999999999-00000-"
"""A time after all others, but for the name of its author."""

DERIVED: Final = OpKind("test.derived", derivation=True)


@dataclass(frozen=True)
class SharedMesh:
    """One mesh on one home; each node has a folder of its own, as if it were on another machine."""

    case: HomeCase
    folder: Path
    server: Server | None
    scope_id: str
    has_relay: bool = False

    def settings(self, name: str, **more: Any) -> Settings:
        """The settings of a node; it ticks only when it is asked to."""
        values: dict[str, Any] = {"scope_id": self.scope_id, "node_id": name, "tick": _NEVER}
        values["http"] = self.has_relay
        if self.case is FILE:
            values["db_path"] = self.folder / "shared.db"
        return self.case.settings(self.folder / name, self.server, **(values | more))

    def forget_key(self, name: str) -> None:
        """Have a node come with another key the next time."""
        (self.folder / name / "vox" / "slots" / name / "key.pem").unlink()


async def come_and_go(shared_mesh: SharedMesh, name: str) -> str:
    """Let a node append an op, also from its command line, and leave; its key."""
    async with Mesh.open(shared_mesh.settings(name)) as node:
        node.oplog.register(NOTE)
        await node.oplog.append(NOTE.name, {})
    async with Mesh.open_command(shared_mesh.settings(name)) as command:
        await command.oplog.anchor()
    return node.identity.key.public


async def assert_whole(mesh: Mesh) -> None:
    """The log has no fault."""
    assert [report for report in await mesh.oplog.verify() if report.problem] == []


async def faults(mesh: Mesh) -> set[str]:
    """The chains with a fault."""
    return {report.node_id for report in await mesh.oplog.verify() if report.problem}
