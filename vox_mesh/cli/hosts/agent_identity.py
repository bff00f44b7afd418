"""The identity of a host's agent: its key, its admission, a grant, and a token in a file of the home."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from vox_mesh.mesh import Mesh
from vox_mesh.model.principals.agent_token import digest_of
from vox_mesh.nodes.agent_keys import agent_key
from vox_mesh.nodes.agent_token_file import agent_token_file, find_agent_token
from vox_mesh.store.files import make_private, replace_private

TEMPLATE: Final = "coder"
"""What the agent of a host may do: the template of grants."""

_LASTS: Final = "365d"
_RENEW_BEFORE_MS: Final = 30 * 86_400_000
_PRIVATE: Final = 0o600


class IdentityState(NamedTuple):
    """What an agent has, and what it lacks."""

    is_admitted: bool
    has_grant: bool
    has_token: bool
    """Whether its file has a token that is in force for another month."""

    @property
    def missing(self) -> list[str]:
        """The names of what it lacks."""
        names = ("admission", "grant", "token")
        return [name for name, is_there in zip(names, self, strict=True) if not is_there]


async def identity_state(mesh: Mesh, home: Path, agent: str) -> IdentityState:
    """Return what an agent has on this mesh and in this home."""
    history = await mesh.grants.history()
    return IdentityState(
        history.admission(agent) is not None,
        bool(await mesh.grants.in_force(agent)),
        await _has_token(mesh, home, agent),
    )


async def give_identity(mesh: Mesh, home: Path, agent: str) -> list[str]:
    """Make what an agent lacks, and return its names. Raises `Refused` if only the owner may."""
    public = agent_key(home, agent, create=True).public
    _close_to_others(agent_token_file(home, agent))
    found = await identity_state(mesh, home, agent)
    made: list[str] = []
    if not found.is_admitted:
        await mesh.grants.admit(agent, public)
        made.append("admission")
    if not found.has_grant:
        await mesh.grants.issue(agent, [TEMPLATE])
        made.append("grant")
    if not found.has_token:
        await _issue_token(mesh, home, agent)
        made.append("token")
    return made


def request_to_owner(home: Path, agent: str) -> str:
    """Return what a user who is not the owner of the mesh asks the owner for."""
    public, name = agent_key(home, agent, create=True).public, shlex.quote(agent)
    return (
        f"ask the owner of the mesh to run: vox-mesh agents admit {name} --key {public} && "
        f"vox-mesh grant issue {name} {TEMPLATE} && vox-mesh agents token issue {name}; "
        f"then put the token into {agent_token_file(home, agent)} and run this again"
    )


async def take_token(mesh: Mesh, home: Path, agent: str) -> bool:
    """Revoke the token in an agent's file and delete the file; return whether there was one."""
    path = agent_token_file(home, agent)
    text = find_agent_token(home, agent)
    if text is None:
        return False
    digest = digest_of(text)
    for token in await mesh.principals.tokens.in_force(agent):
        if token.digest == digest:
            await mesh.principals.tokens.revoke(token.token_id)
    path.unlink(missing_ok=True)
    return True


async def _issue_token(mesh: Mesh, home: Path, agent: str) -> None:
    path = agent_token_file(home, agent)
    make_private(path.parent)
    before = find_agent_token(home, agent)
    issued = await mesh.principals.tokens.issue(agent, lasts=_LASTS)
    replace_private(path, f"{issued.text}\n".encode(), path.with_suffix(".token.new"))
    if before is not None:  # the file had one that ends soon
        for token in await mesh.principals.tokens.in_force(agent):
            if token.digest == digest_of(before):
                await mesh.principals.tokens.revoke(token.token_id)


async def _has_token(mesh: Mesh, home: Path, agent: str) -> bool:
    text = find_agent_token(home, agent)
    if text is None:
        return False
    limit_ms = mesh.clock.now_ms + _RENEW_BEFORE_MS
    digest = digest_of(text)
    return any(
        token.digest == digest and token.until_ms > limit_ms
        for token in await mesh.principals.tokens.in_force(agent)
    )


def _close_to_others(path: Path) -> None:
    """Close the file of a token, which the user may have written by hand, to other users."""
    with suppress(FileNotFoundError):
        path.chmod(_PRIVATE)
