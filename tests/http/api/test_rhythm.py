"""The rhythm over HTTP: beats, policies, reports, promises, status claims, budgets and addresses."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from tests.cli.conftest import VoxCommand
from tests.support.jobs.job_desks import ended
from tests.support.messages.messaging import change
from tests.support.messages.relaying import assert_problem
from tests.support.nodes.serving import READ_TOKEN, ServedNode
from tests.support.rhythm.grounds import BAR_MS, BEGIN_MS, MovableClock, player
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.model.jobs.records import Job
from vox_mesh.model.rhythm.promises import HelpState
from vox_mesh.node import MeshNode

pytestmark = pytest.mark.asyncio(loop_scope="module")

POLICY: Final = "cluster_id: east\ninitial_bpm: 15\nlimits: {min_bpm: 6, max_bpm: 24}\n"


async def test_one_that_only_reads_sees_all_and_changes_nothing(served: ServedNode) -> None:
    for path in (
        *("rhythm/beat", "rhythm/policy", "rhythm/reports", "rhythm/promises", "rhythm/status"),
        "budgets/report",
    ):
        assert (await served.ask("GET", f"/v1/{path}", token=READ_TOKEN)).status_code == 200
    said = {"agent_id": "ada", "task_id": "t", "state": "planning"}
    for method, path, body in (
        ("PUT", "/v1/rhythm/policy", {"policy": POLICY}),
        ("PUT", "/v1/rhythm/incident", {}),
        ("DELETE", "/v1/rhythm/incident", None),
        ("POST", "/v1/rhythm/status", said),
        ("PUT", "/v1/budgets", {"subject": "agent:ada", "budget": {"max_bu": 1}}),
    ):
        assert_problem(await served.ask(method, path, body, token=READ_TOKEN), 403, "read_only")


# --- incidents -----------------------------------------------------------------------------------


async def test_an_incident_is_declared_shown_and_cleared(served: ServedNode) -> None:
    path = "/v1/rhythm/incident"
    assert (await served.ask("GET", path)).json() == {"incident": None}
    declared = (await served.ask("PUT", path, {"reason": "failover"})).json()
    assert (declared["reason"], declared["node_id"]) == ("failover", served.node.identity.node_id)
    assert (await served.ask("GET", path, token=READ_TOKEN)).json() == {"incident": declared}
    assert (await served.ask("GET", "/v1/rhythm/policy")).json()["incident"] == declared
    assert (await served.ask("DELETE", path)).json() == declared
    assert_problem(await served.ask("DELETE", path), 404, "not_known")
    assert_problem(await served.ask("PUT", path, {"reason": "x" * 501}), 422, "bad_body")
    assert_problem(await served.ask("PUT", path, {"reason": "a\x1bb"}), 422, "bad_value")
    assert (await served.ask("GET", path)).json() == {"incident": None}


# --- the policy ----------------------------------------------------------------------------------


async def test_a_policy_is_announced_and_what_is_wrong_with_one_is_reported(served: ServedNode) -> None:
    bad = await served.ask(
        "PUT", "/v1/rhythm/policy", {"policy": "cluster_id: east\ninitial_bpm: fast\nx: 1"}
    )
    assert_problem(bad, 422, "bad_policy")
    assert [fault.split(": ")[:2] for fault in bad.json()["faults"]] == [
        ["policy:2", "initial_bpm"],
        ["policy:3", "x"],
    ]
    bad = await served.ask("PUT", "/v1/rhythm/policy", {"policy": {"cluster_id": "east"}})
    assert_problem(bad, 422, "bad_policy")
    announced = (await served.ask("PUT", "/v1/rhythm/policy", {"policy": POLICY})).json()
    assert (announced["tempo_bpm"], announced["policy"]["cluster_id"]) == (15.0, "east")
    again = {"policy": {"cluster_id": "east", "initial_bpm": 20}}
    last = (await served.ask("PUT", "/v1/rhythm/policy", again)).json()
    assert last["anchor_ms"] > announced["anchor_ms"]
    shown = await served.get("/v1/rhythm/policy")
    assert (shown["in_force"]["reason"], shown["announced"]) == ("built in", [announced, last])


# --- what became of bars and promises ------------------------------------------------------------


async def test_reports_come_in_pages_the_newest_first(neighbour: tuple[ServedNode, VoxCommand]) -> None:
    served, vox = neighbour
    hand = MovableClock()
    ann = player(served.node, hand)
    for bar in range(3):
        hand.to(bar, 2)
        await ann.say("ada", "write", "executing", progress=0.1 * bar)
        hand.to(bar + 1, 2)
        await ann.bar_reporter.roll_up_due()
    first = await served.get("/v1/rhythm/reports", limit=2)
    assert [each["start_ms"] for each in first["items"]] == [BEGIN_MS + 2 * BAR_MS, BEGIN_MS + BAR_MS]
    reports = await served.all("/v1/rhythm/reports", limit=2)
    assert [each["start_ms"] for each in reports] == [BEGIN_MS + bar * BAR_MS for bar in (2, 1, 0)]
    assert {each["kpis"]["eta"] for each in reports} == {1.0}
    assert (await asyncio.to_thread(vox, "rhythm", "report", "--json")).document == reports


async def test_promises_are_listed_with_what_came_of_them(served: ServedNode) -> None:
    help_ = served.node.rhythm.help
    asked = [await help_.ask("helper", {"n": n}, sender="ada", within_beats=100) for n in range(3)]
    await help_.promise(asked[1], promise_beats=2, fail_after_beats=3, sender="bob")
    await help_.answer(asked[2], "here", sender="eve")
    listed = await served.all("/v1/rhythm/promises", limit=2)
    assert [each["thread_id"] for each in listed] == [each.thread_id for each in reversed(asked)]
    assert [each["state"] for each in listed] == [HelpState.KEPT, HelpState.PROMISED, HelpState.ASKED]
    (promised,) = await served.all("/v1/rhythm/promises", state="promised")
    assert (promised["helper"], promised["promise_beats"], promised["fail_after_beats"]) == ("bob", 2, 3)
    assert_problem(await served.ask("GET", "/v1/rhythm/promises?state=lost"), 422, "bad_query")


# --- status --------------------------------------------------------------------------------------


async def test_what_is_said_of_a_task_counts_for_the_beat_of_its_time(served: ServedNode) -> None:
    rhythm = served.node.rhythm
    now = str(served.node.clock.tick())
    of_old = {"bar": 1287, "beat": 3, "beats_left": 2, "progress": 1, "notes": "soon", "hlc": now}
    answer = await served.ask(
        "POST", "/v1/rhythm/status", {"agent_id": "ada", "task_id": "old", "state": "review", **of_old}
    )
    assert answer.status_code == 202
    said = answer.json()
    stamp = rhythm.stamp(now)
    assert (said["window"], said["beat_index"], said["hlc"]) == (stamp.window, stamp.beat_index, now)
    result = {"agent_id": "bob", "task_id": "new", "state": "waiting", "wait_for": ["hmmm://thread/x"]}
    assert (await served.ask("POST", "/v1/rhythm/status", result)).json()["wait_for"] == ["hmmm://thread/x"]
    assert rhythm.status.live == 0  # a client that sends a status over HTTP also sends the next one
    await rhythm.status.flush()
    rows = await served.node.store.read(
        "SELECT agent_id, state, progress FROM status_claims WHERE scope_id = ?1 ORDER BY agent_id",
        served.node.store.writer_id[:1],
    )
    assert [tuple(row) for row in rows] == [("ada", "review", 1.0), ("bob", "waiting", None)]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"state": "asleep"}, "bad_body"),
        ({"progress": 2}, "bad_body"),
        ({"beat": 0}, "bad_body"),
        ({"hlc": "yesterday"}, "bad_value"),
        ({"hlc": "9999999999999-00000-x"}, "bad_value"),
        ({"agent_id": "a\nb"}, "bad_value"),
        ({"mood": "good"}, "bad_body"),
    ],
)
async def test_what_is_no_claim_is_refused(served: ServedNode, change: dict[str, Any], code: str) -> None:
    said = {"agent_id": "ada", "task_id": "t", "state": "planning", **change}
    assert_problem(await served.ask("POST", "/v1/rhythm/status", said), 422, code)


# --- budgets and addresses -----------------------------------------------------------------------


async def test_budgets_are_set_and_listed_and_removed_also_of_accounts_that_are_addresses(
    neighbour: tuple[ServedNode, VoxCommand],
) -> None:
    served, vox = neighbour
    account = "account:ucxl://acct/research"
    wanted = {"max_bu": 12, "wait_caps": {"help": 2}}
    was_set = (await served.ask("PUT", "/v1/budgets", {"subject": account, "budget": wanted})).json()
    assert was_set["budget"] == wanted
    await served.ask("PUT", "/v1/budgets", {"subject": "agent:ada", "budget": {"max_bu": 1}})
    both = await served.all("/v1/budgets", limit=1)
    assert [each["subject"] for each in both] == [account, "agent:ada"]
    assert (await asyncio.to_thread(vox, "budget", "show", "--json")).document == both
    spent = await served.all("/v1/budgets/report")
    assert [(each["subject"], each["bu"], each["verdict"]) for each in spent] == [
        (account, 0.0, "ok"),
        ("agent:ada", 0.0, "ok"),
    ]
    assert (await asyncio.to_thread(vox, "budget", "report", "--json")).document == spent
    bad = await served.ask("PUT", "/v1/budgets", {"subject": account, "budget": {"max_bu": -1, "x": 2}})
    assert_problem(bad, 422, "bad_budget")
    assert len(bad.json()["faults"]) == 2
    removed = await served.ask("PUT", "/v1/budgets", {"subject": account, "budget": None})
    assert removed.json() == was_set
    assert_problem(await served.ask("GET", "/v1/budgets", params={"subject": account}), 404, "not_known")


async def test_an_address_is_resolved_and_a_bad_one_refused_by_its_place(served: ServedNode) -> None:
    found = await served.get("/v1/ucxl", address="ucxl://proj:any/*/task/x;beats=^^4")
    assert (found["delta_beats"], found["address"]) == (4, "ucxl://proj:any/*/task/x;beats=^^4")
    bad = await served.ask("GET", "/v1/ucxl", params={"address": "ucxl://a/b;beats=4"})
    assert_problem(bad, 422, "bad_address")
    assert "at offset" in bad.json()["detail"]


# --- stamps --------------------------------------------------------------------------------------


async def _done(node: MeshNode) -> Job:
    """A job that left something behind."""

    @node.worker.handles("test.leaves")
    async def leave(_: JobContext) -> dict[str, int]:
        return {"n": 1}

    scheduled = await node.jobs.schedule("test.leaves")
    async with node.worker.running():
        await ended(node, scheduled)
    return await node.jobs.find(scheduled.job_id)


async def test_messages_ops_and_what_jobs_left_have_the_beat_of_their_time(
    neighbour: tuple[ServedNode, VoxCommand],
) -> None:
    served, vox = neighbour
    stamp_of = served.node.rhythm.stamp

    def stamped(result: dict[str, Any]) -> bool:
        stamp = stamp_of(result["hlc"])
        return (result["window"], result["beat_index"]) == (stamp.window, stamp.beat_index)

    async def printed(*arguments: str) -> Any:
        return (await asyncio.to_thread(vox, *arguments, "--json")).document

    sent = await served.node.messages.send("bob", {"n": 1}, sender="ada")
    message = await served.get(f"/v1/messages/{sent.message_uuid}")
    assert message["hlc"] == sent.hlc
    assert stamped(message)
    assert await printed("messages", "show", sent.message_uuid) == message
    assert await printed("messages", "list") == [message]
    job = await _done(served.node)
    whole = await served.get(f"/v1/jobs/{job.job_id}")
    (output,) = whole["output_artifacts"]
    op = await served.get(f"/v1/oplog/{job.last_op}")
    assert (output["name"], output["hlc"]) == ("result", op["hlc"])
    assert stamped(output)
    assert stamped(op)
    assert await printed("job", "show", job.job_id) == whole
    assert op in await printed("oplog", "tail")
    (entry,) = [each for each in await served.all("/v1/oplog") if each["op_id"] == job.last_op]
    assert entry == op


async def test_what_is_no_time_has_no_beat(neighbour: tuple[ServedNode, VoxCommand]) -> None:
    served, _ = neighbour
    sent = await served.node.messages.send("eve", "hello", sender="ada")
    await change(served.node, [sent], hlc="sometime")
    message = await served.get(f"/v1/messages/{sent.message_uuid}")
    assert (message["hlc"], message["window"], message["beat_index"]) == ("sometime", None, None)
