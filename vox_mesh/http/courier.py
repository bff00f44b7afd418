"""The courier: brings messages to other nodes over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

import httpx
import orjson

from vox_mesh.errors import RelayFailed, RelayRefused
from vox_mesh.http.deliver import FROM, NODE, PATH, STORED, wire
from vox_mesh.messages.whereabouts import Peer
from vox_mesh.model.messages import Message

_TIMEOUT_S: Final = 3.0
_CONNECT_S: Final = 1.0
_KEPT_S: Final = 30.0
_MAX_CONNECTIONS: Final = 64
_AGAIN: Final = (
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.MISDIRECTED_REQUEST,
    HTTPStatus.TOO_MANY_REQUESTS,
)


class HttpCourier:
    """Posts to `/v1/a2a/deliver` of the node that messages are for."""

    def __init__(self, node_id: str, token: str | None) -> None:
        headers = {"Content-Type": "application/json", FROM: node_id}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_S),
            limits=httpx.Limits(max_connections=_MAX_CONNECTIONS, keepalive_expiry=_KEPT_S),
            trust_env=False,  # a proxy for the wide world does not know our nodes
            follow_redirects=False,
        )

    async def deliver(self, peer: Peer, messages: Sequence[Message], *, stored: bool) -> None:
        """Bring messages to a node."""
        headers = {NODE: peer.node_id, STORED: "1" if stored else "0"}
        if len(messages) == 1 and messages[0].traceparent is not None:
            headers["traceparent"] = messages[0].traceparent
        body = orjson.dumps([wire(message) for message in messages])
        try:
            answer = await self._client.post(f"{peer.url}{PATH}", content=body, headers=headers)
        except httpx.HTTPError as error:
            raise RelayFailed(f"{peer.url}: {str(error) or type(error).__name__}") from None
        except (httpx.InvalidURL, ValueError) as error:
            raise RelayRefused(f"{peer.url} is no address: {error}") from None
        if answer.status_code == HTTPStatus.OK:
            return
        detail = _detail(answer)
        if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR or answer.status_code in _AGAIN:
            raise RelayFailed(detail)
        raise RelayRefused(detail, hint=_hint(answer))

    async def close(self) -> None:
        """Let go of all connections."""
        await self._client.aclose()


def _detail(answer: httpx.Response) -> str:
    document = _document(answer)
    said = document.get("detail") or answer.reason_phrase
    return f"{answer.status_code} {str(said)[:500]}"


def _hint(answer: httpx.Response) -> str:
    if answer.status_code == HTTPStatus.UNAUTHORIZED:
        return "VOX_MESH_TOKEN must be the same on both nodes"
    return str(_document(answer).get("hint", ""))[:500]


def _document(answer: httpx.Response) -> dict[str, object]:
    try:
        document = orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}
