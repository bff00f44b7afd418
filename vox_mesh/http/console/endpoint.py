"""The endpoint of the console: its pages, signing in and out, and the session."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict
from http import HTTPStatus
from importlib.metadata import version
from typing import Annotated, Any, Final, TypeVar

import orjson
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vox_mesh.errors import BadValue
from vox_mesh.http.access import Access, Credential, CredentialKind, Scope, credential_of_session
from vox_mesh.http.console.authenticator import SessionAuthenticator, cookie_name, session_ended
from vox_mesh.http.console.codes import LASTS_S, Invitation, SignInCodes
from vox_mesh.http.console.files import INDEX, WebFiles
from vox_mesh.http.console.headers import secure_headers
from vox_mesh.http.console.peers import ConsolePeers
from vox_mesh.http.console.sessions import LASTS_MS, ConsoleSession, SignedInBy
from vox_mesh.http.principals.refusals import operation_of
from vox_mesh.http.problems import Problem
from vox_mesh.http.requests import body_of, read_body
from vox_mesh.model.base.reserved import person_agent
from vox_mesh.observability.throttled_logger import ThrottledLogger
from vox_mesh.runtime.services import MeshServices

_log = logging.getLogger(__name__)

ROOT: Final = "/ui"
PAGE: Final = f"{ROOT}/"
STATIC: Final = f"{ROOT}/static/"
CODES: Final = f"{ROOT}/codes"
SESSION: Final = f"{ROOT}/session"

_AGENT: Final = "Vox-Agent"
_MAX_SECRET: Final = 1_024
_NOT_KEPT: Final = {"Cache-Control": "no-store"}
_BY: Final = {
    CredentialKind.OWNER: SignedInBy.USER,
    CredentialKind.TOKEN: SignedInBy.TOKEN,
    CredentialKind.READ: SignedInBy.READ_TOKEN,
}

_Model = TypeVar("_Model", bound=BaseModel)
_Secret = Annotated[str, Field(min_length=1, max_length=_MAX_SECRET)]
_Name = Annotated[str, Field(min_length=1, max_length=64)]


class CodeRequest(BaseModel):
    """Who is to sign in with a code, and whether to read only."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: _Name
    read_only: bool = False


class SignInRequest(BaseModel):
    """A code, or a token and the name of the person who uses it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    code: _Secret | None = None
    token: _Secret | None = None
    name: _Name | None = None


class ConsoleEndpoint:
    """Serves the console until it is stopped."""

    def __init__(
        self,
        mesh: MeshServices,
        access: Access,
        sessions: SessionAuthenticator,
        peers: ConsolePeers,
        browser_url: Callable[[], str | None],
        files: WebFiles | None = None,
    ) -> None:
        """`browser_url` returns the address at which a browser on this machine finds the node."""
        self._mesh = mesh
        self._access = access
        self._sessions = sessions
        self._codes = SignInCodes(sessions.sessions.now_ms)
        self._peers = peers
        self._browser_url = browser_url
        self._files = WebFiles() if files is None else files
        self._log_throttled = ThrottledLogger(_log)

    def add_to(self, app: web.Application) -> None:
        """Register the routes, and the headers of everything below them."""
        app.router.add_post(CODES, self._issue_code)
        app.router.add_post(SESSION, self._sign_in)
        app.router.add_get(SESSION, self._show)
        app.router.add_delete(SESSION, self._sign_out)
        app.router.add_get(f"{STATIC}{{name:.+}}", self._serve_file)
        app.router.add_get(ROOT, _redirect)
        app.router.add_get(f"{PAGE}{{view:.*}}", self._serve_page)
        app.on_response_prepare.append(_add_headers)

    def end(self) -> None:
        """End all sessions, and refuse new ones."""
        self._codes.clear()
        self._sessions.sessions.end_all()

    # --- files -----------------------------------------------------------------------------------

    async def _serve_page(self, request: web.Request) -> web.Response:
        self._sessions.check_host(request)
        address = self._sessions.own_address(request)
        if address is not None:
            location = f"{address}{request.rel_url.raw_path_qs}"
            return web.Response(
                status=HTTPStatus.TEMPORARY_REDIRECT, headers={"Location": location, **_NOT_KEPT}
            )
        page = await self._files.find(INDEX)
        if page is None:
            raise Problem(HTTPStatus.NOT_FOUND, "not_found", "console is not installed at this node")
        response = page.response(request)
        response.headers.update(secure_headers([peer.url for peer in await self._peers.all()]))
        return response

    async def _serve_file(self, request: web.Request) -> web.Response:
        self._sessions.check_host(request)
        file = await self._files.find(request.match_info["name"])
        if file is None:
            raise Problem(HTTPStatus.NOT_FOUND, "not_found", "console has no such file")
        return file.response(request)

    # --- signing in ------------------------------------------------------------------------------

    async def _issue_code(self, request: web.Request) -> web.Response:
        """Issue a code to the owner's side; no agent gets one, nor a client that acts for one."""
        credential = await self._access.identify(request, Scope.READ)
        if credential.kind not in (CredentialKind.OWNER, CredentialKind.TOKEN) or _AGENT in request.headers:
            self._access.note_refusal(credential, operation_of(request), "person_only")
            self._log_throttled(
                logging.WARNING, "code refused: remote=%s credential=%r", request.remote, credential.name
            )
            raise _person_only()
        asked = await _read(request, CodeRequest)
        person = _checked_name(asked.name)
        await self._files.prepare()
        code = self._codes.issue(Invitation(person, _BY[credential.kind], asked.read_only))
        if code is None:
            raise self._no_room("codes")
        _log.info(
            "code issued: person=%r read_only=%s credential=%r", person, asked.read_only, credential.name
        )
        return _respond(
            {
                "code": code,
                "path": f"{PAGE}#code={code}",
                "expires_in_s": LASTS_S,
                "node_id": self._mesh.identity.node_id,
                "url": self._browser_url(),
            }
        )

    async def _sign_in(self, request: web.Request) -> web.Response:
        self._sessions.check_page(request)
        asked = await _read(request, SignInRequest)
        if (asked.code is None) == (asked.token is None):
            raise _bad_body("exactly one of `code` and `token` must be given")
        invitation = self._invitation(request, asked)
        opened = self._sessions.sessions.open(*invitation[:2], is_read_only=invitation.is_read_only)
        if opened is None:
            raise self._no_room("sessions")
        session = opened.session
        _log.info(
            "signed in: person=%r by=%r read_only=%s remote=%s",
            *(session.person, session.by.value, session.is_read_only, request.remote),
        )
        response = _respond({"secret": opened.secret, "session": await self._view(session)})
        self._set_cookie(request, response, opened.cookie, LASTS_MS // 1_000)
        return response

    def _invitation(self, request: web.Request, asked: SignInRequest) -> Invitation:
        """Return who signs in. Raises 401 if the code or the token is wrong."""
        if asked.code is not None:
            invitation = self._codes.use(asked.code)
            if invitation is not None:
                return invitation
            self._log_refused(request, "code_wrong")
            raise Problem(
                HTTPStatus.UNAUTHORIZED,
                "code_wrong",
                f"code must be used once, within {LASTS_S} s",
                "run `vox-mesh console` again",
            )
        assert asked.token is not None
        credential = self._access.credential_of_token(asked.token)
        if credential is None or credential.kind not in _BY:
            self._log_refused(request, "token_wrong")
            raise Problem(
                HTTPStatus.UNAUTHORIZED,
                "token_wrong",
                "wrong token",
                "use the VOX_MESH_TOKEN or the VOX_MESH_READ_TOKEN of the node, or run `vox-mesh console`",
            )
        if asked.name is None:
            raise _bad_body("name: a token needs the name of the person who uses it")
        return Invitation(_checked_name(asked.name), _BY[credential.kind], is_read_only=False)

    def _no_room(self, things: str) -> Problem:
        """Return the refusal of a session or a code for which there is no room."""
        if self._sessions.sessions.is_closed:
            status, hint = HTTPStatus.SERVICE_UNAVAILABLE, "retry at another node"
            return Problem(status, "leaving", "node is shutting down", hint)
        self._log_throttled(logging.WARNING, "no room for more %s", things)
        status, hint = HTTPStatus.TOO_MANY_REQUESTS, "retry later, or use `vox-mesh console` there"
        return Problem(status, "too_many_sessions", f"node has no room for more {things}", hint)

    def _log_refused(self, request: web.Request, reason: str) -> None:
        self._log_throttled(logging.WARNING, "sign-in refused: remote=%s reason=%s", request.remote, reason)

    # --- the session -----------------------------------------------------------------------------

    async def _show(self, request: web.Request) -> web.Response:
        return _respond(await self._view(self._session_of(request)))

    async def _sign_out(self, request: web.Request) -> web.Response:
        session = self._session_of(request)
        self._sessions.sessions.end(session)
        _log.info("signed out: person=%r remote=%s", session.person, request.remote)
        response = web.Response(status=HTTPStatus.NO_CONTENT, headers=_NOT_KEPT)
        self._set_cookie(request, response, "", 0)
        return response

    def _session_of(self, request: web.Request) -> ConsoleSession:
        session = self._sessions.find(request)
        if session is None:
            raise session_ended()
        return session

    async def _view(self, session: ConsoleSession) -> dict[str, Any]:
        is_strict = await self._access.is_strict()
        credential: Credential = credential_of_session(session, is_strict=is_strict)
        scope_id, repository_id = self._mesh.store.mesh_id
        return {
            "name": session.person,
            "agent": session.agent,
            "may_write": Scope.WRITE in credential.scopes,
            "expires_ms": session.ends_ms,
            "node_id": self._mesh.identity.node_id,
            "scope_id": scope_id,
            "repository_id": repository_id,
            "version": version("vox-mesh"),
            "strict": is_strict,
            "nodes": [asdict(peer) for peer in await self._peers.all()],
        }

    def _set_cookie(self, request: web.Request, response: web.Response, value: str, lasts_s: int) -> None:
        response.set_cookie(
            cookie_name(request),
            value,
            max_age=lasts_s,
            path="/",
            secure=request.headers.get("Origin", "").startswith("https://"),
            httponly=True,
            samesite="Strict",
        )


async def _redirect(_: web.Request) -> web.Response:
    return web.Response(status=HTTPStatus.PERMANENT_REDIRECT, headers={"Location": PAGE})


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers of the console to everything below its path, also to problems."""
    if request.path == ROOT or request.path.startswith(PAGE):
        for name, value in secure_headers().items():
            response.headers.setdefault(name, value)


async def _read(request: web.Request, model: type[_Model]) -> _Model:
    document = await read_body(await body_of(request))
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part)[:64] for part in first["loc"])
        raise _bad_body(f"{where}: {first['msg']}" if where else first["msg"]) from None


def _checked_name(name: str) -> str:
    try:
        person_agent(name)
    except BadValue as error:
        raise _bad_body(f"{error}", error.hint) from None
    return name


def _respond(document: dict[str, Any]) -> web.Response:
    return web.Response(body=orjson.dumps(document), content_type="application/json", headers=_NOT_KEPT)


def _bad_body(fault: str, hint: str = "see docs/reference/http.md") -> Problem:
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "bad_body", f"in the body: {fault}", hint)


def _person_only() -> Problem:
    return Problem(
        HTTPStatus.FORBIDDEN,
        "person_only",
        "code must be asked for by the user of the node or with VOX_MESH_TOKEN, and for no agent",
        "run `vox-mesh console` as the user of the node",
    )
