"""`vox-mesh route`: which kinds of job go to one node only, as the owner says."""

from __future__ import annotations

import pytest

from tests.cli.conftest import VoxCommand, assert_wrong_usage, running_node


def test_the_owner_sets_lists_and_clears_routes(shared: VoxCommand) -> None:
    assert shared("route", "list", "--json").document == []
    assert shared("route", "list").out == "none\n"
    with running_node(shared) as node:
        for kind in ("cortex.extract", "cortex.*", "*", "exec"):
            done = shared("route", "set", kind, node.node_id, "--json").document
            assert (done["kind"], done["node_id"]) == (kind, node.node_id)
        routes = shared("route", "list", "--json").document
        assert [each["kind"] for each in routes] == ["*", "cortex.*", "cortex.extract", "exec"]
        assert {(each["node_id"], each["state"]) for each in routes} == {(node.node_id, "alive")}
        cleared = shared("route", "clear", "cortex.*", "--json").document
        assert (cleared["kind"], cleared["node_id"]) == ("cortex.*", None)
        again = shared("route", "clear", "cortex.*")
        assert (again.code, "route of cortex.* not found" in again.error) == (1, True)
        assert shared("roles", "show", "--json").document["routes"].keys() == {"*", "cortex.extract", "exec"}
    assert {each["state"] for each in shared("route", "list", "--json").document} == {"left"}
    kinds = [entry["kind"] for entry in shared("oplog", "tail", "--kind", "RouteKind", "--json").document]
    assert len(kinds) == 5


def test_one_that_is_not_the_owner_is_refused_notified_who_is_and_logged(vox: VoxCommand) -> None:
    with running_node(vox) as owner:
        assert vox("route", "set", "a.b", owner.node_id).code == 0
        stranger = vox.having(VOX_MESH_NODE_ID="stranger")
        for arguments in (("set", "a.*", owner.node_id), ("clear", "a.b")):
            refused = stranger("route", *arguments)
            assert refused.code == 1
            assert f"the owner of the mesh is {owner.node_id}: run this there" in refused.error
        entries = vox("oplog", "tail", "--kind", "RouteKind", "--json").document
        assert [entry["accepted"] for entry in entries] == [True, False, False]
        unknown = vox("route", "set", "a.b", "unknown")
        assert (unknown.code, "node 'unknown' not found" in unknown.error) == (1, True)
        for pattern in ("a*", "a.*.b", "A", ".a", "a.", "a..*", "", "a b", "a.**", "x" * 129):
            wrong = vox("route", "set", pattern, owner.node_id)
            assert (wrong.code, "a kind must be" in wrong.error) == (2, True), pattern
        assert [each["kind"] for each in vox("route", "list", "--json").document] == ["a.b"]


@pytest.mark.parametrize("command", ["set a b", "clear a", "list"])
def test_on_the_memory_home_there_is_no_one_to_route_to(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_wrong_usage(f"route {command}", "needs a mesh, and", capsys)
