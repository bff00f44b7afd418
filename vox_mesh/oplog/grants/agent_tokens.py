"""Tokens of agents: issued and revoked by the owner, for hosts that can only be given a fixed text.

The table says which tokens are in force. A row counts only if the owner has signed the op that issued it. All
rows are read together, once a second; for an unknown token sooner, as it may be new, but few times a second.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from typing import Final, NamedTuple

from vox_mesh.errors import DatabaseUnavailable, NotKnown
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.durations import Duration, checked_seconds
from vox_mesh.model.messages.records import checked_agent
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.verification import ISSUE_TOKEN, READ_ERRORS, REVOKE_TOKEN
from vox_mesh.model.principals.agent_token import (
    SECRET_BYTES,
    AgentToken,
    digest_of,
    token_id_of,
    token_text,
)
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.oplog.grants.op_writer import GrantOpWriter
from vox_mesh.oplog.grants.permits import Permits
from vox_mesh.oplog.grants.shared_reading import SharedReading
from vox_mesh.oplog.ownership import Ownership
from vox_mesh.oplog.roles import Roles
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Statement, new_key
from vox_mesh.store.store import Store

MAX_TOKENS: Final = 1_000
"""The maximum number of tokens in force."""

DEFAULT_LASTS: Final = "90d"
_MAX_LASTS_S: Final = 366 * 86_400.0
_PRUNED_AT_ONCE: Final = 100
_SQL: Final = named("agent_tokens")
_TOO_MANY: Final = "too_many_tokens"
_NOT_ADMITTED: Final = "agent_not_admitted"
_HINTS: Final = {
    _TOO_MANY: f"at most {MAX_TOKENS:,} tokens can be in force; `vox-mesh agents token revoke` ends one",
    _NOT_ADMITTED: "run `vox-mesh agents admit NAME` first",
}


class IssuedToken(NamedTuple):
    """A new token, and its text, which is shown once."""

    token: AgentToken
    text: str


class AgentTokens:
    """Issue, revoke and check the tokens of agents."""

    def __init__(
        self,
        store: Store,
        permits: Permits,
        clock: MeshClock,
        roles: Roles,
        ownership: Ownership,
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._mesh = store.mesh_id
        self._clock = clock
        self._ops = GrantOpWriter(clock, roles, permits, _HINTS)
        self._ownership = ownership
        self._known: dict[str, AgentToken] | DatabaseUnavailable = {}
        self._signed: set[AgentToken] = set()
        self._reading = SharedReading(self._read, monotonic)

    async def issue(self, agent: str, *, lasts: Duration = DEFAULT_LASTS) -> IssuedToken:
        """Issue a token to an admitted agent; only the owner may."""
        seconds = checked_seconds("lasts", lasts, 1.0, _MAX_LASTS_S, hint="for example 30d, at most a year")
        token_id = new_key()
        text = token_text(token_id, secrets.token_bytes(SECRET_BYTES))
        until_ms = self._clock.now_ms + round(seconds * 1_000)
        token = AgentToken(token_id, checked_agent(agent), digest_of(text), until_ms)
        await self._write(
            token_id,
            ISSUE_TOKEN,
            token.payload,
            Statement(_SQL["prune"], (*self._mesh, _PRUNED_AT_ONCE)),
            Statement(_SQL["refuse_unless_admitted"], (*self._mesh, agent), refusal=_NOT_ADMITTED),
            Statement(_SQL["refuse_if_many"], (*self._mesh, MAX_TOKENS), refusal=_TOO_MANY),
            Statement(_SQL["issue"], (*self._mesh, *token)),
        )
        return IssuedToken(token, text)

    async def revoke(self, token_id: str) -> AgentToken:
        """Revoke a token; only the owner may. Raises `NotKnown` if there is none in force."""
        found = {each.token_id: each for each in await self.in_force()}
        if token_id not in found:
            hint = "run `vox-mesh agents token list` to see the tokens in force"
            raise NotKnown(f"token {token_id!r} not found", hint=hint)
        values = (*self._mesh, token_id)
        await self._write(
            new_key(),
            REVOKE_TOKEN,
            canonical({"token": token_id}),
            Statement(_SQL["refuse_unless_issued"], values, refusal="token_not_in_force"),
            Statement(_SQL["revoke"], values),
        )
        return found[token_id]

    async def _write(self, op_id: str, kind: str, payload: str, *statements: Statement) -> None:
        await self._ops.write(op_id, kind, payload, *statements)
        self._reading.expire()

    # --- checking --------------------------------------------------------------------------------

    async def in_force(self, agent: str | None = None) -> list[AgentToken]:
        """Return the tokens in force that the owner has signed, of one agent or of all."""
        rows = await self._store.read(_SQL["in_force"], (*self._mesh, MAX_TOKENS), fresh=True)
        found = [AgentToken(*row) for row in rows]
        now_ms, self._signed = self._clock.now_ms, {each for each in found if await self._is_signed(each)}
        valid = [each for each in found if each in self._signed and each.until_ms > now_ms]
        return [each for each in valid if agent in (None, each.agent)]

    async def agent_of(self, text: str) -> str | None:
        """Return the agent of a token in force, or `None`; a revocation is seen within a second."""
        token_id = token_id_of(text)
        if token_id is None:
            return None
        await self._reading.reuse()
        found = self._find(token_id)
        if found is None:
            await self._reading.renew()  # it may have been issued since
            found = self._find(token_id)
        if found is None or not hmac.compare_digest(found.digest, digest_of(text)):
            return None
        return found.agent if found.until_ms > self._clock.now_ms else None

    def _find(self, token_id: str) -> AgentToken | None:
        if isinstance(self._known, DatabaseUnavailable):
            raise self._known
        return self._known.get(token_id)

    async def _read(self) -> bool:
        """Read the tokens in force. While the database is away none is known: one may have been revoked."""
        try:
            self._known = {each.token_id: each for each in await self.in_force()}
        except DatabaseUnavailable as error:
            self._known = error
        return isinstance(self._known, dict)

    async def _is_signed(self, token: AgentToken) -> bool:
        """Return whether the owner has signed the op that issued a token."""
        if token in self._signed:
            return True
        owners = await self._ownership.succession()
        rows = await self._store.read(_SQL["op"], (*self._mesh, token.token_id), fresh=True)
        try:
            entries = [LogEntry._make(row) for row in rows]
            return owners is not None and any(
                entry.kind == ISSUE_TOKEN
                and entry.accepted == 1
                and owners.signer(entry) is not None
                and token.is_issued_by(entry.payload)
                for entry in entries
            )
        except READ_ERRORS:
            return False
