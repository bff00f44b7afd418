"""The connection of an agent to its node: requests with a deadline, signed with the agent's key."""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import httpx
import orjson

from vox_mesh.client.problem_errors import error_of
from vox_mesh.errors import BadSettings, BadValue, MeshError, NoAnswer, Unreachable
from vox_mesh.model.base import ulid
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.principals.request_signature import MAX_SKEW_MS, Audience, sign_request

CALL_S: Final = 30.0
"""The deadline of a call that does not wait for anything."""

UNIX: Final = "unix:"
_EXAMPLE: Final = "for example unix:/run/vox-mesh/agents.sock, or https://HOST#SCOPE/REPOSITORY/NODE"
_CONNECT_S: Final = 5.0
_CHANCE_BITS: Final = 80
_STALE: Final = "signature_stale"
_OTHER_NODE: Final = "signature_of_other_node"


class NodeConnection:
    """Sends requests of one agent. Over a socket its user says who it is, else its key or its bearer does."""

    def __init__(
        self, address: str, agent: str, *, key: SigningKey | None = None, bearer: str | None = None
    ) -> None:
        """`address`: after a URL, `#` and the node that is there, for which requests are signed.

        Raises `BadSettings` if the address is no socket and no URL, or two credentials are given.
        """
        if key is not None and bearer is not None:
            raise BadSettings("key and bearer can't be combined", hint="pass one of them")
        address, self._audience = _parsed(address)
        self.address = address
        self.agent = agent
        self._key = None if address.startswith(UNIX) else key
        # A header can't carry every name; the credential says who the agent is all the same.
        self._headers = {"Vox-Agent": agent} if agent.isascii() else {}
        if bearer is not None:
            self._headers["Authorization"] = f"Bearer {bearer}"
        self._from_ms = 0
        self._mesh_id: tuple[str, str] | None = None
        transport, base = transport_of(address)
        self._base = httpx.URL(base)
        limits = httpx.Timeout(None, connect=_CONNECT_S)
        self._client = httpx.AsyncClient(transport=transport, timeout=limits, trust_env=False)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def get(self, path: str, *, timeout_s: float = CALL_S, **query: Any) -> Any:
        """Read something; parameters that are `None` are omitted."""
        given = {name: value for name, value in query.items() if value is not None}
        return await self._call("GET", path + (f"?{urlencode(given)}" if given else ""), b"", timeout_s)

    async def post(self, path: str, body: Mapping[str, Any], *, timeout_s: float = CALL_S) -> Any:
        """Do something; fields that are `None` are omitted."""
        given = {name: value for name, value in body.items() if value is not None}
        return await self.post_whole(path, given, timeout_s=timeout_s)

    async def post_whole(self, path: str, body: Mapping[str, Any], *, timeout_s: float = CALL_S) -> Any:
        """Do something, with all fields as they are."""
        return await self._call("POST", path, orjson.dumps(body), timeout_s)

    async def mesh_id(self) -> tuple[str, str] | None:
        """Return the scope and the repository of the mesh, by which messages are signed.

        `None` if the node is of an older version, which takes no signatures of messages.
        """
        if self._audience is not None:
            return self._audience.scope_id, self._audience.repository_id
        if self._mesh_id is None:
            audience = (await self.get("/v1/hooks/brief")).get("audience")
            if audience is not None:
                scope_id, repository_id, _ = Audience.parse(audience)
                self._mesh_id = scope_id, repository_id
        return self._mesh_id

    async def _call(self, method: str, target: str, body: bytes, timeout_s: float) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._call_signed(method, target, body)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Unreachable(
                f"node at {self.address} can't be reached: {_reason(error)}",
                hint="check that the node runs, and VOX_MESH_NODE",
            ) from None
        except (TimeoutError, httpx.TransportError) as error:
            why = f"within {timeout_s:.0f} s" if isinstance(error, TimeoutError) else f": {_reason(error)}"
            raise NoAnswer(
                f"node at {self.address} did not answer {why}",
                hint="outcome unknown: check the current state before retrying",
            ) from None

    async def _call_signed(self, method: str, target: str, body: bytes) -> Any:
        if self._key is not None and self._audience is None:
            raise await self._unnamed()
        answer = await self._send(method, target, body)
        if self._key is not None and self._starts_later(_problem(answer)):
            answer = await self._send(method, target, body)
        if self._key is not None and _problem(answer).get("code") == _OTHER_NODE:
            raise BadSettings(
                f"node at {self.address} is {_audience_in(answer)}, not {self._audience}",
                hint="check VOX_MESH_NODE: a request that is signed for one node can't be used at another",
            )
        if answer.is_success:
            return orjson.loads(answer.content)
        raise error_of(answer.status_code, _problem(answer))

    async def _send(self, method: str, target: str, body: bytes) -> httpx.Response:
        headers = {**self._headers, "Content-Type": "application/json"} if body else dict(self._headers)
        if self._key is not None and self._audience is not None:
            nonce = new_ulid(self._from_ms)
            headers |= sign_request(self._key, self.agent, self._audience, method, target, body, nonce)
        url = self._base.copy_with(raw_path=target.encode())
        return await self._client.request(method, url, content=body, headers=headers)

    def _starts_later(self, problem: Mapping[str, Any]) -> bool:
        """Return whether signatures must have a later time since the node has just started; remember it."""
        from_ms = problem.get("from_ms")
        if problem.get("code") != _STALE or not isinstance(from_ms, int):
            return False
        self._from_ms = min(from_ms, _now_ms() + MAX_SKEW_MS)
        return True

    async def _unnamed(self) -> MeshError:
        """Return the error if no node is named to sign for, with what the one at the address says it is.

        It could say anything, also to get signatures that another node accepts: so that is not believed.
        """
        answer = await self._send("GET", "/v1/nodes", b"")
        audience = _audience_in(answer)
        if audience is None:
            return error_of(answer.status_code, _problem(answer))
        return BadSettings(
            f"node at {self.address} must be named to sign requests for it; it says that it is {audience}",
            hint=f"if the owner says so, too, set VOX_MESH_NODE={self.address}#{audience}",
        )


def _parsed(address: str) -> tuple[str, Audience | None]:
    """Return an address without the node that it names, and that node, if any."""
    if address.startswith(UNIX):
        return address, None
    url, _, named = address.partition("#")
    try:
        return url, Audience.parse(named) if named else None
    except BadValue as error:
        raise BadSettings(f"VOX_MESH_NODE: {error.line}", hint=_EXAMPLE) from None


def transport_of(address: str) -> tuple[httpx.AsyncHTTPTransport, str]:
    """Return the transport to a node, and the beginning of its URLs. Raises `BadSettings` for other texts."""
    if address.startswith(UNIX):
        path = address.removeprefix(UNIX)
        if not path.startswith("/"):
            raise BadSettings(f"VOX_MESH_NODE: the path after unix: must be absolute, got {path!r}")
        return httpx.AsyncHTTPTransport(uds=path, verify=_trust(is_encrypted=False)), "http://node"
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise BadSettings(
            f"VOX_MESH_NODE must be unix:PATH, http://HOST:PORT or https://HOST, got {address!r}",
            hint=_EXAMPLE,
        )
    return httpx.AsyncHTTPTransport(verify=_trust(is_encrypted=parts.scheme == "https")), address


def _trust(*, is_encrypted: bool) -> ssl.SSLContext | bool:
    """Return which certificates to trust: loading the usual ones takes longer than a request does."""
    return True if is_encrypted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def new_ulid(from_ms: int = 0) -> str:
    """Return a new ULID of the current time, or of a later one."""
    return ulid.encode(max(_now_ms(), from_ms), secrets.randbits(_CHANCE_BITS))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def in_query(seconds: float) -> str:
    """Return a time as a parameter of a query."""
    return f"{round(seconds * 1_000)}ms"


def _audience_in(answer: httpx.Response) -> Audience | None:
    """Return the audience that a refusal names; `None` if it names none."""
    audience = _problem(answer).get("audience")
    try:
        return Audience.parse(audience) if isinstance(audience, str) else None
    except BadValue:
        return None


def _problem(answer: httpx.Response) -> dict[str, Any]:
    """Return the problem document of an answer; empty if it is none."""
    if answer.is_success:
        return {}
    try:
        found = orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _reason(error: Exception) -> str:
    cause: BaseException = error
    while (inner := cause.__cause__ or cause.__context__) is not None:
        cause = inner
    return (cause.strerror if isinstance(cause, OSError) else None) or str(cause) or type(error).__name__
