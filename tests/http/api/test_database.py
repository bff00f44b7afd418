"""The database and the whole mesh, over HTTP."""

from __future__ import annotations

import pytest

from tests.support.nodes.api_scene import fill
from tests.support.nodes.printing import printed
from tests.support.nodes.serving import ServedNode
from vox_mesh.model.retention.subjects import Subject

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_where_the_data_lives_is_reported(served: ServedNode) -> None:
    document = await served.get("/v1/db")
    assert (document["home"], document["scope_id"]) == ("file", served.shared_mesh.scope_id)
    assert (document["breaker"], document["waiting"], document["replica"]) == ("off", 0, None)
    assert document["engine"]["address"] == str(served.shared_mesh.folder / "shared.db")
    by_command = await printed(served, "db", "status")
    assert document["schema_version"] == by_command["schema_version"]


async def test_the_overview_has_something_of_everything(served: ServedNode) -> None:
    names = await fill(served.node)
    document = await served.get("/v1/overview")
    assert [each["node_id"] for each in document["nodes"]] == [names["node_id"]]
    assert {each["lock_key"] for each in document["locks"]} >= {"a", "b"}
    assert names["conflict_id"] in [each["conflict_id"] for each in document["conflicts"]]
    assert document["mail"]["unread"] >= 3


async def test_the_retention_has_all_policies(served: ServedNode) -> None:
    document = await served.get("/v1/retention")
    assert {each["subject"] for each in document["policies"]} == {each.value for each in Subject}
    assert document["policies"][0] | {"pruned": None, "needed": None} == {
        "subject": "jobs",
        "kind": None,
        "age": "30d",
        "max_rows": None,
        "max_bytes": None,
        "is_default": True,
        "what": "ended jobs",
        "pruned": None,
        "needed": None,
    }
