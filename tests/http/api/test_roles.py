"""Roles and routes over HTTP: they are read there, and not changed."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from tests.support.messages.relaying import assert_problem
from tests.support.nodes.printing import printed
from tests.support.nodes.serving import ServedNode
from tests.support.nodes.shared_mesh import come_and_go

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_roles_are_shown_as_the_command_does(served: ServedNode, kind: str) -> None:
    await come_and_go(served.shared_mesh, "ben")
    await served.node.roles.designate_coordinator("ben")
    await served.node.roles.set_route(kind, "ben")
    roles = await served.get("/v1/roles")
    assert roles == await printed(served, "roles", "show")
    assert (roles["coordinator"]["node_id"], roles["coordinator"]["drift"]) == ("ben", True)
    assert roles["routes"] == {kind: "ben"}
    routes = await served.all("/v1/routes")
    assert routes == [{"kind": kind, "node_id": "ben", "state": "left"}]
    assert routes == await printed(served, "route", "list")
    await served.node.roles.clear_route(kind)


async def test_one_that_has_the_roles_already_is_notified_until_they_change(served: ServedNode) -> None:
    first = await served.ask("GET", "/v1/roles")
    tag = first.headers["ETag"]
    for said in (tag, f'W/{tag}, "other"', f'"other" , {tag}'):
        again = await served.ask("GET", "/v1/roles", headers={"If-None-Match": said})
        assert (again.status_code, again.content) == (HTTPStatus.NOT_MODIFIED, b"")
        assert again.headers["ETag"] == tag
    await served.node.roles.designate_coordinator("ann")
    changed = await served.ask("GET", "/v1/roles", headers={"If-None-Match": tag})
    assert changed.status_code == HTTPStatus.OK
    assert changed.json()["coordinator"]["node_id"] == "ann"


async def test_an_old_client_learns_which_command_does_it_now(served: ServedNode) -> None:
    answer = await served.ask("PUT", "/v1/routes/demo.x", {"node_id": "ann"})
    assert_problem(answer, HTTPStatus.FORBIDDEN, "owner_only")
    assert answer.json()["hint"] == "run `vox-mesh route set KIND NODE` there"
    assert_problem(await served.ask("PUT", "/v1/routes/demo.x", token=None), 401, "token_missing")
