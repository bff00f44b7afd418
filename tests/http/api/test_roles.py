"""Roles and routes over HTTP."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from tests.support.messages.relaying import assert_problem
from tests.support.nodes.printing import printed
from tests.support.nodes.serving import Served, serving_api
from tests.support.nodes.town import come_and_go
from vox_mesh.errors import KeyRefused

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_owner_puts_nodes_in_charge_as_the_command_does(served: Served, kind: str) -> None:
    await come_and_go(served.town, "ben")
    document = (await served.ask("PUT", "/v1/roles/coordinator", {"node_id": "ben"})).json()
    assert (document["node_id"], document["role"]) == ("ben", "coordinator")
    assert (await served.get(f"/v1/oplog/{document['op_id']}"))["kind"] == "DesignateCoordinator"
    routed = (await served.ask("PUT", f"/v1/routes/{kind}", {"node_id": "ben"})).json()
    assert (routed["kind"], routed["node_id"]) == (kind, "ben")
    roles = await served.get("/v1/roles")
    assert roles == await printed(served, "roles", "show")
    assert (roles["coordinator"]["node_id"], roles["coordinator"]["drift"]) == ("ben", True)
    assert roles["routes"] == {kind: "ben"}
    routes = await served.all("/v1/routes")
    assert routes == [{"kind": kind, "node_id": "ben", "state": "left"}]
    assert routes == await printed(served, "route", "list")
    cleared = (await served.ask("DELETE", f"/v1/routes/{kind}")).json()
    assert (cleared["kind"], cleared["node_id"]) == (kind, None)
    assert_problem(await served.ask("DELETE", f"/v1/routes/{kind}"), 404, "not_known")


async def test_one_that_has_the_roles_already_is_notified_until_they_change(served: Served) -> None:
    first = await served.ask("GET", "/v1/roles")
    tag = first.headers["ETag"]
    for said in (tag, f'W/{tag}, "other"', f'"other" , {tag}'):
        again = await served.ask("GET", "/v1/roles", headers={"If-None-Match": said})
        assert (again.status_code, again.content) == (HTTPStatus.NOT_MODIFIED, b"")
        assert again.headers["ETag"] == tag
    await served.ask("PUT", "/v1/roles/coordinator", {"node_id": "ann"})
    changed = await served.ask("GET", "/v1/roles", headers={"If-None-Match": tag})
    assert changed.status_code == HTTPStatus.OK
    assert changed.json()["coordinator"]["node_id"] == "ann"


async def test_no_one_is_put_in_charge_who_never_was_here(served: Served, kind: str) -> None:
    for path in ("/v1/roles/coordinator", f"/v1/routes/{kind}"):
        assert_problem(await served.ask("PUT", path, {"node_id": "unknown"}), 404, "not_known")
    assert_problem(await served.ask("POST", "/v1/nodes/unknown/rekey", {}), 404, "not_known")


async def test_only_the_owner_may(served: Served, kind: str) -> None:
    async with serving_api(served.town, "eve") as other:
        for method, path, body in (
            ("PUT", "/v1/roles/coordinator", {"node_id": "eve"}),
            ("PUT", f"/v1/routes/{kind}", {"node_id": "eve"}),
            ("POST", "/v1/nodes/ann/rekey", {"key": other.node.identity.key.public}),
        ):
            refused = await other.ask(method, path, body)
            assert_problem(refused, HTTPStatus.FORBIDDEN, "refused")
            assert refused.json()["reason"] == "not_the_owner"
            assert "the owner of the mesh is ann" in refused.json()["hint"]


async def test_a_node_that_came_with_another_key_is_accepted_again(served: Served) -> None:
    old = await come_and_go(served.town, "fay")
    served.town.forget_key("fay")
    with pytest.raises(KeyRefused):
        await come_and_go(served.town, "fay")
    document = await served.post("/v1/nodes/fay/rekey", {})
    assert document["node_id"] == "fay"
    assert document["public_key"] == await come_and_go(served.town, "fay") != old
    assert_problem(await served.ask("POST", "/v1/nodes/fay/rekey", {"key": "none"}), 422, "bad_value")
    kept = await served.ask("POST", "/v1/nodes/ann/rekey", {"key": old})
    assert_problem(kept, HTTPStatus.CONFLICT, "refused")
    assert kept.json()["reason"] == "the_owner_keeps_its_key"
