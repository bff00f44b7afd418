"""Authentication of agents: by a signature, by a bearer of the bar, or by a token for hosts.

Before an agent is known, the work is small: a look at what the node knows of its key, and one signature. What
the node does not know is read again before it refuses, for all requests of a moment together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, NamedTuple

from aiohttp import web

from vox_mesh.errors import Unreachable
from vox_mesh.http.principals.nonces import Nonces
from vox_mesh.http.principals.refusals import RefusalLog, operation_of
from vox_mesh.http.problems import Problem
from vox_mesh.model.principals import agent_bearer, agent_token
from vox_mesh.model.principals.request_signature import (
    HEADERS,
    MAX_AHEAD_MS,
    MAX_SKEW_MS,
    SIGNATURE,
    SIGNATURE_INPUT,
    Audience,
    RequestSignature,
)
from vox_mesh.observability.throttled_logger import ThrottledLogger
from vox_mesh.oplog.grants.agent_tokens import AgentTokens
from vox_mesh.oplog.grants.known_agents import KnownAgents
from vox_mesh.rhythm.agent_bearers import AgentBearers

_log = logging.getLogger(__name__)

_HINT_TO_HOSTS: Final = (
    "ask the owner for another: `vox-mesh agents token issue AGENT`; the agent also needs a grant in force"
)


class ProvenAgent(NamedTuple):
    """The agent that a request is from, and how it was proved."""

    agent: str
    signature: RequestSignature | None = None
    """With which it signed the request. The body is yet to be compared with its digest."""

    is_of_surface: bool = False
    """Whether it is a token, which is accepted on few paths only."""


class AgentAuthenticator:
    """Find out which agent a request is from."""

    def __init__(
        self,
        audience: Audience,
        known: KnownAgents,
        refusals: RefusalLog,
        bearers: AgentBearers,
        tokens: AgentTokens,
        now_ms: Callable[[], int],
    ) -> None:
        self.audience = audience
        self.known = known
        self.refusals = refusals
        self._now_ms = now_ms
        self._bearers = bearers
        self._tokens = tokens
        self._nonces = Nonces(now_ms())
        self._log_throttled = ThrottledLogger(_log)

    async def authenticate(self, request: web.Request, bearer: str) -> ProvenAgent | None:
        """Return the agent of a request, or `None` if it presents no credential of an agent.

        `bearer`: the text after `Bearer` in its header, or empty. Raises 401 if the credential is not valid.
        """
        is_signed = SIGNATURE_INPUT in request.headers or SIGNATURE in request.headers
        is_bearer, is_token = bearer.startswith(agent_bearer.MARK), bearer.startswith(agent_token.MARK)
        if not (is_signed or is_bearer or is_token):
            return None
        await self.known.refresh()
        if is_signed:
            return await self._by_signature(request, has_more="Authorization" in request.headers)
        return self._by_bearer(request, bearer) if is_bearer else await self._by_token(request, bearer)

    async def is_strict(self) -> bool:
        """Return whether nothing is allowed without a grant, as known for up to a second.

        While nothing is known yet, because the database does not answer, it is not: the transaction of each
        write decides, also of one that is spooled.
        """
        try:
            await self.known.refresh()
        except Unreachable:
            return False
        return self.known.is_strict

    # --- signatures ------------------------------------------------------------------------------

    async def _by_signature(self, request: web.Request, *, has_more: bool) -> ProvenAgent:
        headers = request.headers
        is_single = all(len(headers.getall(name, ())) == 1 for name in HEADERS)
        signature = RequestSignature.read(headers) if is_single and not has_more else None
        if signature is None:
            raise self._rejected(request, "signature_malformed", "signature is not in the expected form")
        if not await self._is_by_admitted(signature, request):
            raise self._rejected(request, "signature_wrong", "signature is by no key of an admitted agent")
        if (problem := self._problem_with(signature)) is not None:
            if not self._nonces.is_after_start(signature.time_ms):  # else any client may do so once
                self.refusals.note(signature.agent, operation_of(request), problem.code)
            raise problem
        return ProvenAgent(signature.agent, signature)

    async def _is_by_admitted(self, signature: RequestSignature, request: web.Request) -> bool:
        """Return whether a signature is by the key of an admitted agent, also of one admitted just now."""
        known_key = self.known.key_of(signature.agent)
        if known_key is not None and signature.is_by(known_key, request.method, request.raw_path):
            return True
        await self.known.renew()
        key = self.known.key_of(signature.agent)
        if key is None or key == known_key:
            return False
        return signature.is_by(key, request.method, request.raw_path)

    def _problem_with(self, signature: RequestSignature) -> Problem | None:
        """Return why a genuine signature is refused; else remember its nonce and return `None`."""
        now_ms, refused = self._now_ms(), HTTPStatus.UNAUTHORIZED
        if signature.audience != str(self.audience):
            detail = "request is signed for another node"
            audience = str(self.audience)
            hint = f"sign it for {audience}"
            return Problem(refused, "signature_of_other_node", detail, hint, audience=audience)
        if not now_ms - MAX_SKEW_MS <= signature.time_ms <= now_ms + MAX_AHEAD_MS:
            detail = (
                f"signature must be at most {MAX_SKEW_MS // 1_000} s old, and {MAX_AHEAD_MS // 1_000} s ahead"
            )
            hint = "sign again; check the clocks of both machines"
            return Problem(refused, "signature_stale", detail, hint)
        if signature.time_ms < (floor_ms := self._nonces.floor_ms):
            detail = "signature may have been used before: the node has started since, or shortly before"
            hint = f"sign again, with a nonce of the time {floor_ms} or later"
            return Problem(refused, "signature_stale", detail, hint, from_ms=floor_ms)
        if not self._nonces.has_room(signature.agent, now_ms):
            detail = "too many signed requests within a minute"
            return Problem(HTTPStatus.SERVICE_UNAVAILABLE, "overloaded", detail, "use a bearer instead")
        if not self._nonces.add(signature.agent, signature.nonce, signature.time_ms):
            detail = "request was received before"
            return Problem(refused, "replayed", detail, "sign each request with a new nonce")
        return None

    # --- bearers ---------------------------------------------------------------------------------

    def _by_bearer(self, request: web.Request, text: str) -> ProvenAgent:
        holder, fault = self._bearers.read(text)
        if holder is None:
            raise self._rejected(request, "token_wrong", "wrong token")
        if fault is not None:
            self.refusals.note(holder.agent, operation_of(request), "token_stale")
            detail = "bearer expired: its bar is over, or its agent has another key or no grant"
            raise Problem(HTTPStatus.UNAUTHORIZED, "token_stale", detail, "ask for another with a signature")
        return ProvenAgent(holder.agent)

    async def _by_token(self, request: web.Request, text: str) -> ProvenAgent:
        agent = await self._tokens.agent_of(text)
        if agent is not None and not self.known.has_grant(agent):
            await self.known.renew()  # it may have one since
        if agent is None or not self.known.has_grant(agent):
            raise self._rejected(request, "token_wrong", "wrong token", _HINT_TO_HOSTS)
        return ProvenAgent(agent, is_of_surface=True)

    def _rejected(self, request: web.Request, code: str, detail: str, hint: str | None = None) -> Problem:
        self._log_throttled(logging.WARNING, "request rejected: remote=%s reason=%s", request.remote, detail)
        hint = hint or f"sign it as an admitted agent, for {self.audience}"
        return Problem(HTTPStatus.UNAUTHORIZED, code, detail, hint, audience=str(self.audience))
