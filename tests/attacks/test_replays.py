"""Captured requests of agents that are sent again, after a restart of the node or when it knows many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.messages.relaying import assert_problem
from tests.support.nodes.serving import serving_api
from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.nodes.signing import SigningAgent, admitted
from tools.homes import FILE
from vox_mesh.http.principals import nonces
from vox_mesh.model.principals.request_signature import MAX_AHEAD_MS
from vox_mesh.store import new_key


async def test_a_request_that_was_signed_ahead_is_not_accepted_again_after_a_restart(tmp_path: Path) -> None:
    shared_mesh = SharedMesh(FILE, tmp_path, None, new_key())
    async with serving_api(shared_mesh) as served:
        agent = await admitted(served, "coder", ["coder"])
        assert (await agent.ask("GET", "/v1/rhythm/beat")).status_code == 200, "right after the start"
        request = agent.signed("POST", "/v1/messages", {"to": "ben", "payload": 1})
        assert agent.from_ms > served.node.clock.now_ms, "it is signed ahead of the time"
        assert (await agent.client.send(request)).status_code == 201
        assert_problem(await agent.client.send(request), 401, "replayed")
        too_far = agent.signed("GET", "/v1/rhythm/beat", later_ms=MAX_AHEAD_MS + 5_000)
        assert_problem(await agent.client.send(too_far), 401, "signature_stale")
    async with serving_api(shared_mesh) as served:
        again = served.client.build_request(
            request.method, request.url.path, content=request.content, headers=dict(request.headers)
        )
        assert_problem(await served.client.send(again), 401, "signature_stale")
        assert len(await served.node.messages.queries.peek(["ben"], limit=9)) == 1
        restarted = SigningAgent("coder", served.client, agent.audience, agent.key)
        assert (await restarted.ask("GET", "/v1/rhythm/beat")).status_code == 200


async def test_agents_that_send_all_they_can_keep_no_other_one_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nonces, "MAX_NONCES", 4)
    monkeypatch.setattr(nonces, "MAX_OF_AGENT", 2)
    monkeypatch.setattr(nonces, "RESERVED", 1)
    async with serving_api(SharedMesh(FILE, tmp_path, None, new_key())) as served:
        for name in ("eve", "eva"):
            hostile = await admitted(served, name, ["reader"])
            for _ in range(2):
                assert (await hostile.ask("GET", "/v1/rhythm/beat")).status_code == 200
            assert_problem(await hostile.ask("GET", "/v1/rhythm/beat"), 503, "overloaded")
        coder = await admitted(served, "coder", ["coder"])
        bearer = await coder.bearer()
        assert (await coder.ask_by(bearer, "GET", "/v1/rhythm/beat")).status_code == 200
