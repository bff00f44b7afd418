"""The client itself: who it is, and what it may do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vox_mesh.http.access import Credential, CredentialKind, Scope, current_credential
from vox_mesh.http.api.operations import Operation, Operations, declared_operations
from vox_mesh.http.principals.needs import NOTHING
from vox_mesh.oplog.grants.known_agents import KnownAgents
from vox_mesh.runtime.services import MeshServices

ME: Final = Operations("me")


@dataclass(frozen=True)
class MeView:
    """Who asks: the kind of credential, the name in which it acts, and the operations that it may call."""

    name: str
    kind: CredentialKind
    agent: str | None
    may_write: bool
    operations: list[str]


@ME.get("/v1/me", needs=NOTHING)
async def show_me(mesh: MeshServices) -> MeView:
    """Show who you are, and the operations that you may call."""
    credential = current_credential()
    known = mesh.principals.known
    if credential.agent is not None:
        await known.refresh()
    return MeView(
        credential.agent or (credential.session.person if credential.session else credential.name),
        credential.kind,
        credential.own_name,
        Scope.WRITE in credential.scopes,
        [each.name for each in declared_operations() if _may_call(credential, known, each)],
    )


def _may_call(credential: Credential, known: KnownAgents, operation: Operation) -> bool:
    """Return whether a credential may call an operation with some inputs; others may still be refused."""
    need = operation.need
    if operation.scope not in credential.scopes:
        return False
    if credential.agent is None:
        return not need.is_signed
    if need.is_for_owner:
        return False
    if need.is_own is not None or need.acts is not None or not known.needs_grant(credential.agent):
        return True
    return all(known.may_try(credential.agent, group) for group in need.actions)
