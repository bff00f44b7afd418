"""Access control: authentication, and what each credential allows."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from http import HTTPStatus
from typing import Final, NamedTuple

from aiohttp import web

from vox_mesh.http.connections import AgentPeer, agent_peer, is_own_user
from vox_mesh.http.console.authenticator import SessionAuthenticator
from vox_mesh.http.console.sessions import ConsoleSession, SignedInBy
from vox_mesh.http.principals.authenticator import AgentAuthenticator, ProvenAgent
from vox_mesh.http.principals.refusals import operation_of
from vox_mesh.http.problems import Problem
from vox_mesh.http.relay.keys import RelayKeys
from vox_mesh.model.principals.request_signature import RequestSignature
from vox_mesh.model.rhythm.window_keys import MARK, WindowKeyFault
from vox_mesh.observability.throttled_logger import ThrottledLogger
from vox_mesh.oplog.grants.known_agents import KnownAgents

_log = logging.getLogger(__name__)

CheckGrant = Callable[[KnownAgents, str], None]
"""Raises a problem unless an agent has a grant for what it requests."""

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


class CredentialKind(StrEnum):
    """What a request is authenticated by."""

    OWNER = "owner"
    """The user of the node, over the local socket."""

    TOKEN = "token"  # noqa: S105 - a kind, not a secret
    READ = "read"
    METRICS = "metrics"
    RELAY = "relay"
    AGENT = "agent"
    PERSON = "person"
    """A session of the console."""


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

    kind: CredentialKind = CredentialKind.READ
    session: ConsoleSession | None = None
    """The session of a person, who acts in the name of the session only."""

    @property
    def own_name(self) -> str | None:
        """The only name in which it acts; `None` if it may name an agent, or none."""
        return self.agent if self.session is None else self.session.agent

    @property
    def account(self) -> str:
        """What its requests count towards: people choose names, so all who have signed in alike share one."""
        return self.name if self.session is None else _account_of(self.session)

    @property
    def is_redacted(self) -> bool:
        """Whether answers omit what only holders and receivers may see."""
        return Scope.WRITE not in self.scopes


_LOCAL: Final = Credential("local user", frozenset(Scope), kind=CredentialKind.OWNER)
_TOKEN: Final = Credential("token", frozenset(Scope), kind=CredentialKind.TOKEN)
_READING: Final = frozenset({Scope.READ, Scope.METRICS})
_STRICT_TOKEN: Final = Credential(
    "token",
    frozenset(Scope) - {Scope.WRITE},
    ("strict_mode", "the shared token writes nothing while the mesh is strict"),
    "act as an agent with a grant: sign the request, or use the agent socket",
    may_name_agents=False,
    kind=CredentialKind.TOKEN,
)
_READ_TOKEN: Final = Credential("read token", _READING, ("read_only", "token is read-only"))
_MADE_WITH: Final = {
    SignedInBy.USER: _LOCAL,
    SignedInBy.TOKEN: _TOKEN,
    SignedInBy.READ_TOKEN: _READ_TOKEN,
}
_METRICS_TOKEN: Final = Credential(
    "metrics token",
    frozenset({Scope.METRICS}),
    ("metrics_only", "token can read metrics only"),
    kind=CredentialKind.METRICS,
)
_SURFACES: Final = ("/mcp", "/v1/hooks")
"""Where tokens of agents are accepted: these paths, and all below them."""

_RELAY_KEY: Final = Credential(
    "relay key",
    frozenset({Scope.RELAY}),
    ("relay_only", "relay key can deliver messages and read artifacts only"),
    kind=CredentialKind.RELAY,
)
_OPERATIONS: Final = "/v1/"
"""Where sessions of the console are accepted: below this path."""

_current: Final = ContextVar[Credential | None]("vox_mesh_credential", default=None)


def current_credential() -> Credential:
    """Return the credential of the request that the current task performs."""
    credential = _current.get()
    assert credential is not None, "no request is performed"
    return credential


@contextmanager
def performing_with(credential: Credential) -> Iterator[None]:
    """Perform a request with a credential within the block."""
    token = _current.set(credential)
    try:
        yield
    finally:
        _current.reset(token)


def credential_of(agent: str, signature: RequestSignature | None = None) -> Credential:
    """Return the credential of an agent, which acts in its own name only."""
    refusal = ("agent_only", f"agent {agent} can neither relay messages nor read metrics")
    scopes = frozenset({Scope.READ, Scope.WRITE})
    return Credential(
        f"agent {agent}", scopes, refusal, agent=agent, signature=signature, kind=CredentialKind.AGENT
    )


def _account_of(session: ConsoleSession) -> str:
    """Return the credential with which a session was made; if it reads only by choice, another one."""
    made_with = _MADE_WITH[session.by]
    is_by_choice = session.is_read_only and not made_with.is_redacted
    return f"read-only session of a {made_with.name}" if is_by_choice else made_with.name


def credential_of_session(session: ConsoleSession, *, is_strict: bool) -> Credential:
    """Return the credential of a person: that of the user or the token with which the session was made."""
    scopes, refusal, hint = frozenset(Scope), ("", ""), ""
    if session.is_read_only:
        scopes, refusal = _READING, ("read_only", "session is read-only")
        hint = "sign in without --read-only, or with the token in VOX_MESH_TOKEN"
    elif is_strict and session.by is SignedInBy.TOKEN:
        scopes, refusal = _STRICT_TOKEN.scopes, _STRICT_TOKEN.refusal
        hint = "sign in with `vox-mesh console` as the user of the owner's node"
    name = f"console {session.person}"
    return Credential(name, scopes, refusal, hint, kind=CredentialKind.PERSON, session=session)


class Access:
    """Authenticates requests: by token, or on the local socket by the user who connects."""

    def __init__(
        self,
        token: str,
        read_token: str | None = None,
        relay_keys: RelayKeys | None = None,
        metrics_token: str | None = None,
        agents: AgentAuthenticator | None = None,
        sessions: SessionAuthenticator | None = None,
    ) -> None:
        """`agents`: without it, no agent can prove who it is; `sessions`: without it, there are none."""
        known = ((token, _TOKEN), (read_token, _READ_TOKEN), (metrics_token, _METRICS_TOKEN))
        self._tokens = [(text.encode(), credential) for text, credential in known if text is not None]
        self._relay_keys = relay_keys
        self.agents = agents
        self.sessions = sessions
        self._log_throttled = ThrottledLogger(_log)

    def check(self, request: web.Request, scope: Scope = Scope.WRITE) -> Credential:
        """Return the credential of a request, or raise 401 or 403 unless it has this permission.

        Those of agents are not accepted.
        """
        return self.permit(self._authenticate(request), operation_of(request), scope)

    async def identify(self, request: web.Request, scope: Scope = Scope.WRITE) -> Credential:
        """Return the credential of a request, also one that an agent or a session proves, as `check` does."""
        session = self._session_of(request)
        if session is not None:
            credential = credential_of_session(session, is_strict=await self.is_strict())
            return self.permit(credential, operation_of(request), scope)
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
        return self.permit(credential, operation_of(request), scope)

    async def is_strict(self) -> bool:
        """Return whether nothing is allowed without a grant, as known for up to a second."""
        return self.agents is not None and await self.agents.is_strict()

    def _session_of(self, request: web.Request) -> ConsoleSession | None:
        """Return the session of a request for an operation; elsewhere none is accepted."""
        resource = request.match_info.route.resource
        if self.sessions is None or resource is None or not resource.canonical.startswith(_OPERATIONS):
            return None
        return self.sessions.find(request)

    def is_still_valid(self, credential: Credential) -> bool:
        """Return whether the session of a credential, if it has one, has not ended; it is used by that."""
        if credential.session is None or self.sessions is None:
            return True
        return self.sessions.sessions.still_uses(credential.session)

    def _check_proven(self, request: web.Request, proven: ProvenAgent, credential: Credential) -> None:
        """Raise 403 if a user connects who is another agent, or a token is used where none is accepted."""
        if credential.agent != proven.agent:
            code, detail = "not_your_name", f"the user who connects is {credential.agent}"
        elif proven.is_of_surface and not _is_surface(request):
            code, detail = "token_of_surface", "token of an agent is accepted under /mcp and /v1/hooks only"
        else:
            return
        self.note_refusal(credential, operation_of(request), code)
        raise Problem(HTTPStatus.FORBIDDEN, code, detail, "sign the request, or use a bearer")

    def permit(self, credential: Credential, operation: str, scope: Scope) -> Credential:
        """Return the credential, or raise 403 unless it has the permission that an operation needs."""
        if scope not in credential.scopes:
            code, detail = credential.refusal
            self.note_refusal(credential, operation, code)
            raise Problem(HTTPStatus.FORBIDDEN, code, detail, credential.refusal_hint)
        return credential

    def check_grant(self, credential: Credential, check: CheckGrant) -> None:
        """Call `check` with what is known about agents, and the agent, if the credential is of one."""
        if credential.agent is not None and self.agents is not None:
            check(self.agents.known, credential.agent)

    async def check_grant_again(self, credential: Credential, check: CheckGrant) -> None:
        """Call `check` as `check_grant` does, with what the database says now: a grant may be new.

        Call it before an agent is refused.
        """
        if self.agents is not None:
            await self.agents.known.renew()
        self.check_grant(credential, check)

    def note_refusal(self, credential: Credential, operation: str, reason: str) -> None:
        """Record that an agent was refused an operation; refusals of the owner's side are not recorded."""
        if credential.agent is not None and self.agents is not None:
            self.agents.refusals.note(credential.agent, operation, reason)

    @contextmanager
    def noting_refusal(self, credential: Credential, operation: str) -> Iterator[None]:
        """Record it if an agent is refused within the block."""
        try:
            yield
        except Problem as problem:
            if problem.status == HTTPStatus.FORBIDDEN:
                self.note_refusal(credential, operation, problem.code)
            raise

    def _authenticate(self, request: web.Request) -> Credential:
        """Return the credential of a request."""
        peer = agent_peer(request)
        if peer is not None:  # whatever else the request says
            return self._credential_of_peer(peer, request)
        if "Authorization" not in request.headers and is_own_user(request):
            _refuse_forwarded(request)
            return _LOCAL
        text = _bearer(request)
        is_bearer = text is not None
        given = (text or "").encode(errors="surrogateescape")
        found = self.credential_of_token(text or "")
        if found is not None:
            return found
        if self._relay_keys is not None and given.startswith(MARK.encode()):
            fault = self._relay_keys.fault(given.decode(errors="replace"))
            if fault is None:
                return _RELAY_KEY
            if fault in _KEY_PROBLEMS:
                raise Problem(HTTPStatus.UNAUTHORIZED, *_KEY_PROBLEMS[fault])
        raise self._rejected_token(request, is_bearer=is_bearer)

    def credential_of_token(self, text: str) -> Credential | None:
        """Return the credential of a token of the node, or `None`. Tokens are compared in constant time."""
        given = text.encode(errors="surrogateescape")
        found = [credential for token, credential in self._tokens if hmac.compare_digest(given, token)]
        return found[0] if found else None

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
