"""The artifact client: streams files of artifacts from the nodes that have them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from vox_mesh.errors import ArtifactMissing
from vox_mesh.http.relay.client import EXPIRED_KEY_CODES, document_of_answer, http_client, sanitize
from vox_mesh.http.relay.keys import RelayKeys
from vox_mesh.messages.relay_outbound import AgentDirectory, Peer

if TYPE_CHECKING:
    import httpx

PATH: Final = "/v1/artifacts/"
_TIMEOUT_S: Final = 15.0
_MAX_PROBLEM_BYTES: Final = 2**16


class HttpArtifactSource:
    """Reads artifacts of other nodes over HTTP, with the keys of the relay. Their content is not verified."""

    def __init__(self, directory: AgentDirectory, keys: RelayKeys) -> None:
        self._directory = directory
        self._keys = keys

    async def stream(self, node_id: str, content_hash: str) -> AsyncGenerator[bytes, None]:
        """Yield the content piece by piece. Raises `ArtifactMissing` if the node does not send it."""
        import httpx

        peer = await self._directory.find_node(node_id)
        if peer is None or peer.url is None:
            raise ArtifactMissing(
                f"the artifact {content_hash} is on node {node_id}, which can't be reached",
                node_id=node_id,
                hint=f"start node {node_id}, and set VOX_MESH_TOKEN to the same value on both",
            )
        try:
            is_encrypted = peer.url.startswith("https:")
            async with http_client({}, is_encrypted=is_encrypted, timeout_s=_TIMEOUT_S) as client:
                key = self._keys.current()
                response = await self._get(client, peer, content_hash, key)
                if response.status_code == HTTPStatus.UNAUTHORIZED:
                    code = document_of_answer(await _read_problem(response)).get("code")
                    await response.aclose()
                    if code in EXPIRED_KEY_CODES:
                        key = await self._keys.replace(key)
                    response = await self._get(client, peer, content_hash, key)
                try:
                    if response.status_code != HTTPStatus.OK:
                        raise self._refused(
                            peer, content_hash, response.status_code, await _read_problem(response)
                        )
                    async for piece in response.aiter_raw():
                        yield piece
                finally:
                    await response.aclose()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            detail = sanitize(str(error), self._keys) or type(error).__name__
            raise ArtifactMissing(
                f"the artifact {content_hash} can't be fetched from node {node_id}: {detail}",
                node_id=node_id,
                hint="try again",
            ) from None

    async def _get(
        self, client: httpx.AsyncClient, peer: Peer, content_hash: str, key: str
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}", "Accept-Encoding": "identity"}
        request = client.build_request("GET", f"{peer.url}{PATH}{content_hash}", headers=headers)
        return await client.send(request, stream=True)

    def _refused(self, peer: Peer, content_hash: str, status: int, answer: bytes) -> ArtifactMissing:
        detail = sanitize(document_of_answer(answer).get("detail"), self._keys)
        return ArtifactMissing(
            f"node {peer.node_id} did not send the artifact {content_hash}: {status} {detail}".rstrip(),
            node_id=peer.node_id,
            hint="retry its job to create it again",
        )


async def _read_problem(response: httpx.Response) -> bytes:
    answer = b""
    async for piece in response.aiter_raw():
        answer += piece
        if len(answer) > _MAX_PROBLEM_BYTES:
            break
    return answer
