"""Whether a node lives and is ready: anyone may ask, and readers get the reasons."""

from __future__ import annotations

from collections.abc import AsyncIterator
from http import HTTPStatus

import httpx
import pytest

from tests.support.messages.relaying import TOKEN, address_of, assert_problem
from tests.support.nodes.serving import READ_TOKEN
from tests.support.nodes.shared_mesh import SharedMesh
from vox_mesh.http.health import LIVE, READY
from vox_mesh.mesh import Mesh
from vox_mesh.model.rhythm.plan import TempoSource
from vox_mesh.node import MeshNode


@pytest.fixture
async def node(village: SharedMesh) -> AsyncIterator[MeshNode]:
    """A node that serves."""
    async with Mesh.open(village.settings("ann", token=TOKEN, read_token=READ_TOKEN)) as node:
        yield node


@pytest.fixture
async def client(node: MeshNode) -> AsyncIterator[httpx.AsyncClient]:
    """A client without a token."""
    async with httpx.AsyncClient(base_url=address_of(node), trust_env=False) as client:
        yield client


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_a_node_that_goes_by_the_median_is_ready_and_says_so(
    node: MeshNode, client: httpx.AsyncClient
) -> None:
    node.rhythm.pulse.source = TempoSource.MEDIAN
    answer = await client.get(READY, params={"verbose": ""}, headers=_bearer(READ_TOKEN))
    (tempo,) = [each for each in answer.json()["checks"] if each["name"] == "tempo"]
    assert (answer.status_code, tempo["ok"]) == (HTTPStatus.OK, True)
    assert "the median" in tempo["detail"]


async def test_anyone_is_notified_whether_it_lives_and_is_ready_and_nothing_else(
    client: httpx.AsyncClient,
) -> None:
    for path, document in ((LIVE, {"live": True}), (READY, {"ready": True})):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()) == (HTTPStatus.OK, document)
        assert answer.headers["Cache-Control"] == "no-store"
        assert (await client.head(path)).status_code == HTTPStatus.OK
        refused = await client.post(path)
        assert_problem(refused, HTTPStatus.METHOD_NOT_ALLOWED, "method_not_allowed")


async def test_why_is_reported_to_anyone_who_may_read(client: httpx.AsyncClient, node: MeshNode) -> None:
    asked = {"verbose": ""}
    for token in (TOKEN, READ_TOKEN):
        answer = await client.get(READY, params=asked, headers=_bearer(token))
        assert answer.status_code == HTTPStatus.OK
        document = answer.json()
        assert document["ready"] is True
        assert [(each["name"], each["ok"]) for each in document["checks"]] == [
            (check.name, True) for check in node.health.checks()
        ]
        assert document["checks"]
    assert_problem(await client.get(READY, params=asked), HTTPStatus.UNAUTHORIZED, "token_missing")
    wrong = await client.get(READY, params=asked, headers=_bearer("other"))
    assert_problem(wrong, HTTPStatus.UNAUTHORIZED, "token_wrong")


async def test_a_node_that_ends_says_nothing_any_more(node: MeshNode, client: httpx.AsyncClient) -> None:
    assert (await client.get(LIVE)).status_code == HTTPStatus.OK
    await node.close()
    with pytest.raises(httpx.TransportError):
        await client.get(LIVE)
