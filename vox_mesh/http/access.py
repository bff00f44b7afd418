"""Access control: authentication, and what each credential allows."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from enum import StrEnum
from http import HTTPStatus
from typing import Final, NamedTuple

from aiohttp import web

from vox_mesh.http.connections import AgentPeer, agent_peer, is_own_user
from vox_mesh.http.principals.authenticator import AgentAuthenticator, ProvenAgent
from vox_mesh.http.principals.refusals import operation_of
from vox_mesh.http.problems import Problem
from vox_mesh.http.relay.keys import RelayKeys
from vox_mesh.model.principals.request_signature import RequestSignature
from vox_mesh.model.rhythm.window_keys import MARK, WindowKeyFault
from vox_mesh.observability.throttled_logger import ThrottledLogger
from vox_mesh.oplog.grants.known_agents import KnownAgents

_log = logging.getLogger(__name__)

_BEARER: Final = "bearer "
_FORWARDING: Final = ("forwarded", "origin", "via", "x-real-ip")
_FORWARDING_PREFIX: Final = "x-forwarded-"


class Scope(StrEnum):
    """The permission a credential must have."""

    READ = "read"
    WRITE = "write"
    RELAY = "relay"
    """To deliver messages, and to read files of artifacts by hash; relay keys have it too."""

    METRICS = "metrics"
    """To read metrics and the reasons of health checks."""


class Credential(NamedTuple):
    """The credential of a request, and what it allows."""

    name: str
    scopes: frozenset[Scope]
    refusal: tuple[str, str] = ("", "")
    """The code and the detail of the problem if it does not allow a request."""

    refusal_hint: str = "use the token in VOX_MESH_TOKEN"

    agent: str | None = None
    """The agent that has proved who it is; `None` for the owner's side: the node's user and the tokens."""

    signature: RequestSignature | None = None
    """With which the agent has signed the request."""

    may_name_agents: bool = True
    """Whether it may say for which agent it acts."""

    @property
    def is_redacted(self) -> bool:
        """Whether answers omit what only holders and receivers may see."""
        return Scope.WRITE not in self.scopes


_LOCAL: Final = Credential("local user", frozenset(Scope))
_TOKEN: Final = Credential("token", frozenset(Scope))
_STRICT_TOKEN: Final = Credential(
    "token",
    frozenset(Scope) - {Scope.WRITE},
    ("strict_mode", "the shared token writes nothing while the mesh is strict"),
    "act as an agent with a grant: sign the request, or use the agent socket",
    may_name_agents=False,
)
_READ_TOKEN: Final = Credential(
    "read token", frozenset({Scope.READ, Scope.METRICS}), ("read_only", "token is read-only")
)
_METRICS_TOKEN: Final = Credential(
    "metrics token", frozenset({Scope.METRICS}), ("metrics_only", "token can read metrics only")
)
_SURFACES: Final = ("/mcp", "/v1/hooks")
"""Where tokens of agents are accepted: these paths, and all below them."""

_RELAY_KEY: Final = Credential(
    "relay key",
    frozenset({Scope.RELAY}),
    ("relay_only", "relay key can deliver messages and read artifacts only"),
)


def credential_of(agent: str, signature: RequestSignature | None = None) -> Credential:
    """Return the credential of an agent, which acts in its own name only."""
    refusal = ("agent_only", f"agent {agent} can neither relay messages nor read metrics")
    scopes = frozenset({Scope.READ, Scope.WRITE})
    return Credential(f"agent {agent}", scopes, refusal, agent=agent, signature=signature)


class Access:
    """Authenticates requests: by token, or on the local socket by the user who connects."""

    def __init__(
        self,
        token: str,
        read_token: str | None = None,
        relay_keys: RelayKeys | None = None,
        metrics_token: str | None = None,
        agents: AgentAuthenticator | None = None,
    ) -> None:
        """`agents`: without it, no agent can prove who it is."""
        known = ((token, _TOKEN), (read_token, _READ_TOKEN), (metrics_token, _METRICS_TOKEN))
        self._tokens = [(text.encode(), credential) for text, credential in known if text is not None]
        self._relay_keys = relay_keys
        self.agents = agents
        self._log_throttled = ThrottledLogger(_log)

    def check(self, request: web.Request, scope: Scope = Scope.WRITE) -> Credential:
        """Return the credential of a request, or raise 401 or 403 unless it has this permission.

        Those of agents are not accepted.
        """
        return self._permitted(request, self._authenticate(request), scope)

    async def identify(self, request: web.Request, scope: Scope = Scope.WRITE) -> Credential:
        """Return the credential of a request, also one that an agent proves, as `check` does."""
        if self.agents is None:
            return self.check(request, scope)
        proven = await self.agents.authenticate(request, _bearer(request) or "")
        if proven is None or agent_peer(request) is not None:
            credential = self._authenticate(request)
            if credential is _TOKEN and await self.agents.is_strict():
                credential = _STRICT_TOKEN
        else:
            credential = credential_of(proven.agent, proven.signature)
        if proven is not None:
            self._check_proven(request, proven, credential)
        if credential.agent is not None:
            await self.agents.known.refresh()
        return self._permitted(request, credential, scope)

    def _check_proven(self, request: web.Request, proven: ProvenAgent, credential: Credential) -> None:
        """Raise 403 if a user connects who is another agent, or a token is used where none is accepted."""
        if credential.agent != proven.agent:
            code, detail = "not_your_name", f"the user who connects is {credential.agent}"
        elif proven.is_of_surface and not _is_surface(request):
            code, detail = "token_of_surface", "token of an agent is accepted under /mcp and /v1/hooks only"
        else:
            return
        self.note_refusal(credential, request, code)
        raise Problem(HTTPStatus.FORBIDDEN, code, detail, "sign the request, or use a bearer")

    def _permitted(self, request: web.Request, credential: Credential, scope: Scope) -> Credential:
        if scope not in credential.scopes:
            code, detail = credential.refusal
            self.note_refusal(credential, request, code)
            raise Problem(HTTPStatus.FORBIDDEN, code, detail, credential.refusal_hint)
        return credential

    def check_grant(self, credential: Credential, check: Callable[[KnownAgents, str], None]) -> None:
        """Call `check` with what is known about agents, and the agent, if the credential is of one."""
        if credential.agent is not None and self.agents is not None:
            check(self.agents.known, credential.agent)

    def note_refusal(self, credential: Credential, request: web.Request, reason: str) -> None:
        """Record that an agent was refused; refusals of the owner's side are not recorded."""
        if credential.agent is not None and self.agents is not None:
            self.agents.refusals.note(credential.agent, operation_of(request), reason)

    def _authenticate(self, request: web.Request) -> Credential:
        """Return the credential of a request. Tokens are compared in constant time."""
        peer = agent_peer(request)
        if peer is not None:  # whatever else the request says
            return self._credential_of_peer(peer, request)
        if "Authorization" not in request.headers and is_own_user(request):
            _refuse_forwarded(request)
            return _LOCAL
        text = _bearer(request)
        is_bearer = text is not None
        given = (text or "").encode(errors="surrogateescape")
        found = [credential for token, credential in self._tokens if hmac.compare_digest(given, token)]
        if found:
            return found[0]
        if self._relay_keys is not None and given.startswith(MARK.encode()):
            fault = self._relay_keys.fault(given.decode(errors="replace"))
            if fault is None:
                return _RELAY_KEY
            if fault in _KEY_PROBLEMS:
                raise Problem(HTTPStatus.UNAUTHORIZED, *_KEY_PROBLEMS[fault])
        raise self._rejected_token(request, is_bearer=is_bearer)

    def _credential_of_peer(self, peer: AgentPeer, request: web.Request) -> Credential:
        _refuse_forwarded(request)
        if peer.agent is not None:
            return credential_of(peer.agent)
        self._log_throttled(logging.WARNING, "request of a user without an agent refused: uid=%d", peer.user)
        raise Problem(
            HTTPStatus.FORBIDDEN,
            "user_without_agent",
            f"user {peer.user} is no agent of this node",
            f"add {peer.user}=AGENT to VOX_MESH_AGENT_UIDS of the node and restart it",
        )

    def _rejected_token(self, request: web.Request, *, is_bearer: bool) -> Problem:
        code, detail = ("token_wrong", "wrong token") if is_bearer else ("token_missing", "no token given")
        self._log_throttled(logging.WARNING, "request rejected: remote=%s reason=%s", request.remote, detail)
        # The audience tells an agent how to sign its first request.
        more = {} if self.agents is None else {"audience": str(self.agents.audience)}
        hint = "send the VOX_MESH_TOKEN of the node, or sign the request with the key of an admitted agent"
        return Problem(HTTPStatus.UNAUTHORIZED, code, detail, hint, **more)


def _bearer(request: web.Request) -> str | None:
    """Return the token in the header, or `None` if there is none."""
    header = request.headers.get("Authorization", "")
    return header[len(_BEARER) :] if header[: len(_BEARER)].lower() == _BEARER else None


def _is_surface(request: web.Request) -> bool:
    resource = request.match_info.route.resource
    path = "" if resource is None else resource.canonical
    return any(path == each or path.startswith(f"{each}/") for each in _SURFACES)


_KEY_PROBLEMS: Final = {
    WindowKeyFault.STALE: (
        "token_stale",
        "key expired: its bar is over",
        "use a key of the current bar; check that the clock is not behind",
    ),
    WindowKeyFault.EARLY: (
        "token_early",
        "key not valid yet: its bar has not begun",
        "use a key of the current bar; check that the clock is not ahead",
    ),
    WindowKeyFault.PROJECT: ("token_of_other_project", "key belongs to another scope or repository", ""),
}


def _refuse_forwarded(request: web.Request) -> None:
    """Raise 403 for requests that a proxy or a page passes on: it is not their author who connects."""
    for name in request.headers:
        if name.lower() in _FORWARDING or name.lower().startswith(_FORWARDING_PREFIX):
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "forwarded",
                f"request with the header {name[:64]} needs a token: it is passed on for another client",
                "send the token in VOX_MESH_TOKEN",
            )
