"""Conflicts over HTTP."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest

from tests.support.messages.relaying import assert_problem
from tests.support.nodes.api_scene import conflict
from tests.support.nodes.printing import printed
from tests.support.nodes.serving import ServedNode
from tests.support.oplog.rivals import MEMORIES, at, row
from vox_mesh import Written
from vox_mesh.http.api.conflicts import ResolveRequest
from vox_mesh.occ.conflicts import Take
from vox_mesh.store.script import new_key

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def name() -> str:
    """A row that no other test has."""
    return new_key()


def path_of(conflict_id: str) -> str:
    """Where a conflict is resolved."""
    return f"/v1/conflicts/{conflict_id}/resolve"


async def test_conflicts_are_reported_as_the_command_tells_them(served: ServedNode) -> None:
    recorded = [await conflict(served.node, new_key()) for _ in range(3)]
    listed = await served.all("/v1/conflicts", limit=1)
    assert [each["conflict_id"] for each in listed if each["conflict_id"] in recorded] == recorded
    assert listed == await printed(served, "conflicts", "list")
    shown = await served.get(f"/v1/conflicts/{recorded[1].lower()}")
    assert shown == next(each for each in listed if each["conflict_id"] == recorded[1])
    assert (shown["base"]["content"], shown["left"]["content"], shown["right"]["tags"]) == (
        *("base", "left", "right"),
    )
    await served.post(path_of(recorded[0]), {"take": "right"})
    still = [each["conflict_id"] for each in await served.all("/v1/conflicts", open="true", table=MEMORIES)]
    assert still == [each["conflict_id"] for each in listed if each["conflict_id"] != recorded[0]]
    assert await served.all("/v1/conflicts", table="others") == []


async def test_pages_go_on_with_what_came_meanwhile(served: ServedNode) -> None:
    await conflict(served.node, new_key())
    first = await served.get("/v1/conflicts", limit=1)
    new = await conflict(served.node, new_key())
    rest = await served.all("/v1/conflicts", limit=2, cursor=first["next"])
    seen = [each["conflict_id"] for each in (*first["items"], *rest)]
    assert (seen, seen[-1]) == (sorted(set(seen)), new)


@pytest.mark.parametrize(
    ("body", "content", "tags"),
    [
        ({"take": "left"}, "left", "base"),
        ({"take": "right"}, "base", "right"),
        ({"take": "merge", "reason": "both"}, "left", "right"),
        ({"value": {"content": "new", "tags": "mine"}}, "new", "mine"),
        ({"columns": {"content": "left", "tags": "base"}}, "left", "base"),
        ({"columns": {"content": "left"}, "value": {"tags": "mine"}}, "left", "mine"),
    ],
)
async def test_a_conflict_is_resolved_once(
    served: ServedNode, name: str, body: dict[str, Any], content: str, tags: str
) -> None:
    conflict_id = await conflict(served.node, name)
    document = await served.post(path_of(conflict_id), body)
    assert (document["conflict_id"], document["resolution"]) == (conflict_id, body.get("take", "value"))
    now = await row(served.node, name)
    assert (now["content"], now["tags"]) == (content, tags)
    assert document["written_at"] in (None, now["written_at"])
    assert (await served.get(f"/v1/oplog/{document['op_id']}"))["kind"] == "ResolveConflict"
    again = await served.ask("POST", path_of(conflict_id), {"take": "left"})
    assert_problem(again, HTTPStatus.CONFLICT, "already_resolved")


async def test_a_row_that_has_moved_is_written_only_onto_the_version_that_was_seen(
    served: ServedNode, name: str
) -> None:
    conflict_id = await conflict(served.node, name)
    written = await served.node.occ.write(MEMORIES, at(name), {"tags": "moved"}, await row(served.node, name))
    assert isinstance(written, Written)
    moved = await served.ask("POST", path_of(conflict_id), {"take": "left"})
    assert_problem(moved, HTTPStatus.CONFLICT, "row_moved")
    problem = moved.json()
    assert (problem["now"]["tags"], problem["onto"]) == ("moved", written.written_at)
    document = await served.post(path_of(conflict_id), {"take": "left", "onto": problem["onto"]})
    assert document["resolution"] == "left"


async def test_what_can_not_be_is_refused(served: ServedNode, name: str) -> None:
    assert_problem(await served.ask("GET", f"/v1/conflicts/{name}"), HTTPStatus.NOT_FOUND, "not_known")
    conflict_id = await conflict(served.node, name)
    bodies: tuple[tuple[Any, str], ...] = (
        ({}, "bad_value"),
        ({"take": "left", "value": {}}, "bad_value"),
        ({"take": "left", "columns": {}}, "bad_value"),
        ({"columns": {"content": "right"}}, "bad_body"),
        ({"columns": {"no such column": "left"}}, "bad_value"),
        ({"take": "none"}, "bad_body"),
        ({"value": {"no such column": 1}}, "bad_value"),
    )
    for body, code in bodies:
        refused = await served.ask("POST", path_of(conflict_id), body)
        assert_problem(refused, HTTPStatus.UNPROCESSABLE_ENTITY, code)
    assert (await served.get(f"/v1/conflicts/{conflict_id}"))["state"] == "open"


async def test_every_side_can_be_taken() -> None:
    for side in Take:
        assert ResolveRequest(take=side.value).take == side
