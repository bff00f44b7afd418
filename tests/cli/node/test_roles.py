"""`vox-mesh roles`: who may do what, as the command line tells and changes it."""

from __future__ import annotations

from tests.cli.conftest import VoxCommand, running_node


def test_a_mesh_without_nodes_has_no_owner(vox: VoxCommand) -> None:
    assert vox("roles", "show", "--json").document == {"owner": None, "coordinator": None, "routes": {}}
    lines = vox("roles", "show").out.splitlines()
    assert [line.split() for line in lines] == [["owner", "-"], ["coordinator", "-"], ["routes", "-"]]
    assert not (vox.folder / ".vox/slots").exists()  # looking makes no key


def test_the_owner_designates_a_coordinator_and_its_drift_is_reported(vox: VoxCommand) -> None:
    with running_node(vox) as owner, running_node(vox) as other:
        done = vox("roles", "designate-coordinator", other.node_id, "--json").document
        shown = vox("roles", "show", "--json").document
        assert shown["owner"]["node_id"] == owner.node_id
        coordinator = shown["coordinator"]
        assert (coordinator["node_id"], coordinator["op_id"]) == (other.node_id, done["op_id"])
        assert (coordinator["state"], coordinator["drift"]) == ("alive", False)
        roles = {each["node_id"]: each["role"] for each in vox("nodes", "--json").document}
        assert roles == {owner.node_id: "owner", other.node_id: "coordinator"}
        both = vox("roles", "designate-coordinator", owner.node_id)
        assert "coordinator" in both.out
        assert vox("nodes", "--json").document[0]["role"] in ("owner+coordinator", "peer")
    shown = vox("roles", "show", "--json").document
    assert (shown["coordinator"]["state"], shown["coordinator"]["drift"]) == ("left", True)
    text = vox("roles", "show").out
    assert "drift    yes" in text
    assert vox("oplog", "verify").code == 0


def test_one_that_is_not_the_owner_is_refused_notified_who_is_and_logged(vox: VoxCommand) -> None:
    with running_node(vox) as owner:
        stranger = vox.having(VOX_MESH_NODE_ID="stranger")
        ended = stranger("roles", "designate-coordinator", owner.node_id)
        assert ended.code == 1
        assert f"the owner of the mesh is {owner.node_id}: run this there" in ended.error
        (entry,) = vox("oplog", "tail", "--kind", "DesignateCoordinator", "--json").document
        assert (entry["node_id"], entry["accepted"]) == ("stranger/cli", False)
        assert entry["reason"] == "not_the_owner"
        assert vox("roles", "show", "--json").document["coordinator"] is None
        unknown = vox("roles", "designate-coordinator", "unknown")
        assert (unknown.code, "nodes --all" in unknown.error) == (1, True)
    assert vox("oplog", "verify").code == 0
