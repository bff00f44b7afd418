"""The relay client: delivers messages to other nodes over HTTP."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import orjson

from vox_mesh.errors import RelayFailed, RelayRefused
from vox_mesh.http.relay.agent_signatures import header_of
from vox_mesh.http.relay.endpoint import FOLLOWS, FROM, NODE, ORDER, PATH, STORED, wire
from vox_mesh.http.relay.keys import RelayKeys
from vox_mesh.messages.relay_outbound import Peer
from vox_mesh.model.messages.records import Message
from vox_mesh.model.rhythm.window_keys import MARK

if TYPE_CHECKING:  # imported with the first delivery: it is large, and many nodes deliver nothing
    import httpx

_TIMEOUT_S: Final = 3.0
_CONNECT_S: Final = 1.0
_KEEPALIVE_S: Final = 30.0
_MAX_CONNECTIONS: Final = 64
_MAX_ANSWER_BYTES: Final = 2**16
_MAX_PEER_TEXT: Final = 300
_KEY: Final = re.compile(rf"{re.escape(MARK)}[\w.-]*", re.ASCII)
EXPIRED_KEY_CODES: Final = ("token_stale", "token_early")
_UNAUTHORIZED_HINT: Final = "set VOX_MESH_TOKEN to the same value on both nodes"
_RETRY_STATUSES: Final = (
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.MISDIRECTED_REQUEST,
    HTTPStatus.TOO_MANY_REQUESTS,
)


class _Answer(NamedTuple):
    """The status, the problem document if there is one, and whether the node follows the commits."""

    status: int
    document: dict[str, Any]
    follows: bool


class SignOrder(Protocol):
    """Signs the order in which messages are relayed to a node."""

    def __call__(self, messages: Sequence[Message], receiver: str, *, stored: bool) -> str:
        """Return the signature."""


class HttpRelayClient:
    """Posts messages to `/v1/a2a/deliver` of the recipient's node."""

    def __init__(self, node_id: str, keys: RelayKeys | None, sign_order: SignOrder | None = None) -> None:
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", FROM: node_id}
        self._keys = keys
        self._sign_order = sign_order
        self._clients: dict[bool, httpx.AsyncClient] = {}

    def _client(self, url: str) -> httpx.AsyncClient:
        is_encrypted = url.startswith("https:")
        if is_encrypted not in self._clients:
            self._clients[is_encrypted] = self._new_client(is_encrypted)
        return self._clients[is_encrypted]

    def _new_client(self, is_encrypted: bool) -> httpx.AsyncClient:
        return http_client(self._headers, is_encrypted=is_encrypted, timeout_s=_TIMEOUT_S)

    async def deliver(self, peer: Peer, messages: Sequence[Message], *, stored: bool) -> bool:
        """Deliver messages to a node; return whether it learns of each commit at once.

        Raises `RelayFailed` or `RelayRefused`.
        """
        headers = {NODE: peer.node_id, STORED: "1" if stored else "0", **header_of(messages)}
        if self._sign_order is not None:
            headers[ORDER] = self._sign_order(messages, peer.node_id, stored=stored)
        if len(messages) == 1 and messages[0].traceparent is not None:
            headers["traceparent"] = messages[0].traceparent
        body = orjson.dumps([wire(message) for message in messages])
        key = None if self._keys is None else self._keys.current()
        answer = await self._post(peer, headers, body, key)
        if self._keys is not None and key is not None and answer.document.get("code") in EXPIRED_KEY_CODES:
            answer = await self._post(peer, headers, body, await self._keys.replace(key))
        status, document, follows = answer
        if status == HTTPStatus.OK:
            return follows
        detail = f"{status} {self._sanitize(document.get('detail')) or _phrase_of(status)}"
        hint = self._sanitize(document.get("hint"))
        if document.get("code") in EXPIRED_KEY_CODES:
            raise RelayFailed(detail, hint=hint)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _RETRY_STATUSES:
            raise RelayFailed(detail)
        raise RelayRefused(detail, hint=_UNAUTHORIZED_HINT if status == HTTPStatus.UNAUTHORIZED else hint)

    async def _post(self, peer: Peer, headers: dict[str, str], body: bytes, key: str | None) -> _Answer:
        """Post the body."""
        import httpx

        if key is not None:
            headers = {**headers, "Authorization": f"Bearer {key}"}
        try:
            client = self._client(peer.url or "")
            request = client.build_request("POST", f"{peer.url}{PATH}", content=body, headers=headers)
            async with asyncio.timeout(2 * _TIMEOUT_S):  # httpx's timeouts apply to each step only
                status, answer, follows = await _send(client, request)
        except TimeoutError:
            raise RelayFailed(f"{peer.url}: response timed out") from None
        except (httpx.InvalidURL, ValueError) as error:
            raise RelayRefused(f"{peer.url} is not a valid address: {self._sanitize(str(error))}") from None
        except httpx.HTTPError as error:
            raise RelayFailed(f"{peer.url}: {self._sanitize(str(error)) or type(error).__name__}") from None
        except Exception as error:
            # Below httpx, anyio raises `AttributeError` on uvloop if a peer closes the connection early.
            reason = f"{type(error).__name__}: {self._sanitize(str(error))}"
            raise RelayFailed(f"{peer.url}: the connection failed: {reason}") from error
        return _Answer(status, {} if status == HTTPStatus.OK else document_of_answer(answer), follows)

    def _sanitize(self, text: object) -> str:
        """Return a peer's text for a log: one line, shortened, and without our token and keys."""
        return sanitize(text, self._keys)

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.aclose()


def http_client(headers: dict[str, str], *, is_encrypted: bool, timeout_s: float) -> httpx.AsyncClient:
    """Return a client for requests to other nodes; the timeout applies to each step of a request."""
    import httpx

    # Loading the system's certificates is slow; without encryption an empty store suffices.
    trust = True if is_encrypted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx.AsyncClient(
        headers=headers,
        verify=trust,
        timeout=httpx.Timeout(timeout_s, connect=_CONNECT_S),
        limits=httpx.Limits(max_connections=_MAX_CONNECTIONS, keepalive_expiry=_KEEPALIVE_S),
        trust_env=False,  # a proxy to the internet can't reach other nodes
        follow_redirects=False,
    )


def sanitize(text: object, keys: RelayKeys | None) -> str:
    """Return a peer's text for a log: one line, shortened, and without our token and keys."""
    shown = text if isinstance(text, str) else ""
    if keys is not None:
        shown = _KEY.sub("***", shown.replace(keys.secret, "***"))
    return "".join(each if each.isprintable() else "?" for each in " ".join(shown.split())[:_MAX_PEER_TEXT])


async def _send(client: httpx.AsyncClient, request: httpx.Request) -> tuple[int, bytes, bool]:
    """Return the status, the body up to the size limit of a problem document, and if the node follows."""
    response = await client.send(request, stream=True)
    try:
        answer = b""
        async for part in response.aiter_raw():
            answer += part
            if len(answer) > _MAX_ANSWER_BYTES:
                break
        return response.status_code, answer, response.headers.get(FOLLOWS) == "1"
    finally:
        await response.aclose()


def _phrase_of(status: int) -> str:
    """Return the reason phrase of a status."""
    return HTTPStatus(status).phrase if status in set(HTTPStatus) else "unknown status"


def document_of_answer(answer: bytes) -> dict[str, Any]:
    """Return the problem document of an answer; empty if it is none."""
    try:
        document = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}
