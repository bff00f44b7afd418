"""The strict part of the demo: agents are admitted and granted, refused, revoked and approved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tools.demo.processes import Failed
from tools.demo.scenario import HEIR, ORCHESTRATORS, OWNER, VICTIM
from tools.demo.workspace import Workspace
from vox_mesh import Manifest, Mesh, acting_as
from vox_mesh.errors import ApprovalPending, NotGranted
from vox_mesh.nodes.identity import node_identity
from vox_mesh.store.slots import slot_folder

_LINES: Final = ("worker", "lock.acquire on file:*.md")
_SECRET: Final = "file:secrets/token"
_DRAFT: Final = "file:drafts/**"
_RELEASE: Final = "job.schedule kind release"
_TTL_S: Final = 1.0

Say = Callable[[str, str], None]
"""Shows a sentence about an agent."""


class StrictPart:
    """What the owner of a strict mesh decides before the work begins."""

    def __init__(self, workspace: Workspace, mesh: Mesh, say: Say) -> None:
        self._workspace = workspace
        self._mesh = mesh
        self._say = say

    async def prepare(self) -> None:
        """Make the mesh strict; admit the nodes and agents, and grant each agent what its work needs."""
        grants = self._mesh.grants
        for name in ORCHESTRATORS:
            home = Path(self._workspace.variables(name)["VOX_MESH_HOME"])
            own = node_identity(slot_folder(home, name), name)
            await grants.admit_node(own.node_id, own.key.public)
        await grants.set_strict(strict=True)
        self._say("makes the mesh strict: nothing without a grant, no node that is not admitted", OWNER)
        for name in ORCHESTRATORS:
            if name != OWNER:
                await grants.admit(name)
                lines = [*_LINES, f"ask {_RELEASE}"] if name == HEIR else _LINES
                await grants.issue(name, lines, lasts="1h")
                self._say(f"is granted: {', '.join(lines)}", name)

    async def show_limits(self) -> None:
        """Show a refusal, and a grant that ends when it is revoked."""
        await self._expect_refusal(_SECRET, VICTIM)
        self._say(f"is refused the lock {_SECRET}: no grant of its allows it", VICTIM)
        grant = await self._mesh.grants.issue(VICTIM, [f"lock.acquire on {_DRAFT}"])
        await self._mesh.locks.release(await self._mesh.locks.acquire(_DRAFT, agent=VICTIM, ttl=_TTL_S))
        await self._mesh.grants.revoke(grant.grant_id)
        await self._expect_refusal(_DRAFT, VICTIM)
        self._say(f"had the lock {_DRAFT} by a grant, which is revoked: now it is refused", VICTIM)

    async def schedule_with_approval(self, jobs: Sequence[Manifest]) -> None:
        """Let an agent ask for jobs that its grant allows after an approval only, and approve them."""
        try:
            with acting_as(HEIR):
                await self._mesh.jobs.schedule_all(jobs)
        except ApprovalPending as pending:
            self._say("asks to schedule the release: its grant says `ask`", HEIR)
            await self._mesh.approvals.approve(pending.approval_id, "the plan has it")
            self._say("approves it; it is scheduled once, exactly as it was asked", OWNER)
        else:
            raise Failed(f"{HEIR} could schedule the release without an approval")

    async def _expect_refusal(self, key: str, agent: str) -> None:
        try:
            await self._mesh.locks.acquire(key, agent=agent, ttl=_TTL_S)
        except NotGranted:
            return
        raise Failed(f"{agent} could lock {key} without a grant")
