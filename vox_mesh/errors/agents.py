"""Errors about agents: what they may do, and what is theirs."""

from __future__ import annotations

from vox_mesh.errors.base import MeshError


class ApprovalPending(MeshError):
    """The agent's grant allows it after an approval only, for which it has asked: nothing else was written.

    `approval_id` is what to wait for.
    """

    code = "approval_pending"

    def __init__(self, approval_id: str, agent: str, expires_at: str) -> None:
        super().__init__(
            f"approval needed: {agent} has asked for it as {approval_id}, until {expires_at}",
            hint=f"a person decides with `vox-mesh approvals show {approval_id}`; wait for it with"
            f" `vox-mesh approvals wait {approval_id}`, and do not send it again",
        )
        self.approval_id = approval_id
        self.expires_at = expires_at


class NotStrict(MeshError):
    """This process requires a strict mesh, and the owner has not made it so."""

    code = "mesh_not_strict"

    def __init__(self) -> None:
        super().__init__(
            "the mesh is not strict, and VOX_MESH_STRICT requires it",
            hint="have the owner run `vox-mesh grant strict on`, or start its node with VOX_MESH_STRICT=1",
        )


class NotItsAgent(MeshError):
    """A job, lock, message or question is of another agent than the acting one."""

    code = "not_its_agent"
