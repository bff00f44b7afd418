"""`vox-mesh job abort`, `retry` and `yield`."""

from __future__ import annotations

from typing import Any, Final

from tests.cli.conftest import VoxCommand
from tests.cli.jobs.test_job import kind, listed
from tests.support.jobs.job_scene import done, on_node, taken
from tools.sqld import Server
from vox_mesh.model.jobs.manifest import handler_manifest
from vox_mesh.node import MeshNode
from vox_mesh.store.script import new_key

_MANY: Final = 501


def snapshot(vox: VoxCommand) -> Any:
    """All jobs as they are."""
    return vox("job", "list", "--json").document


def test_jobs_are_aborted_by_name_and_the_ones_that_had_ended_are_reported(vox: VoxCommand) -> None:
    ended = kind(vox)
    done(ended)
    pending, running = kind(vox), kind(vox)
    after = kind(vox, "test.next", "--after", pending)
    taken(running)
    stopped = vox("job", "abort", pending, running, "--reason", "not\nneeded", "--json")
    assert stopped.code == 0
    reported = [(each["job_id"], each["state"], each["reason"], each["aborted"]) for each in stopped.document]
    assert reported == [(job, "aborted", "not\nneeded", True) for job in (pending, running)]
    assert vox("job", "show", after, "--json").document["state"] == "failed"
    again = vox("job", "abort", pending, ended)
    assert (again.code, again.out.splitlines()[-1]) == (1, "aborted 0 jobs")
    assert vox("job", "show", ended, "--json").document["state"] == "succeeded"
    assert listed(vox, "dead") == [after]
    assert "did not succeed" in vox("job", "dead").out


def test_a_dry_run_shows_what_would_be_and_changes_nothing(vox: VoxCommand) -> None:
    failed = kind(vox, "test.fail")
    done(failed)
    one, two, _ = kind(vox, "test.a"), kind(vox, "test.b"), kind(vox, "other")
    before = snapshot(vox)
    assert listed(vox, "abort", "--kind", "test.*", "--state", "pending", "--dry-run") == [two, one]
    assert vox("job", "abort", one, "--dry-run").out.splitlines()[-1] == "would abort 1 job"
    assert listed(vox, "retry", "--state", "failed", "--kind", "test.*", "--dry-run") == [failed]
    assert listed(vox, "retry", "--kind", "other", "--dry-run") == []
    assert snapshot(vox) == before
    assert vox("oplog", "tail", "--kind", "AbortJob").out == "none\n"


def test_many_are_aborted_in_batches_and_counted_and_others_are_left_alone(vox: VoxCommand) -> None:
    other = kind(vox, "test.other")

    async def schedule(node: MeshNode) -> None:
        manifests = [handler_manifest("test.many", number) for number in range(_MANY)]
        await node.jobs.schedule_all(manifests[1:])
        await node.jobs.schedule_all(manifests[:1])

    on_node(schedule)
    assert vox("job", "abort", "--kind", "test.many").out == f"aborted {_MANY} jobs\n"
    ops = vox("oplog", "tail", "--kind", "AbortJob", "--json").document
    assert [len(op["payload"]["jobs"]) for op in ops] == [500, 1]
    assert listed(vox, "list", "--state", "pending") == [other]
    assert vox("job", "abort", "--kind", "test.many", "--json").document == []
    again = vox("job", "retry", "--state", "aborted", "--kind", "test.many")
    assert (again.code, again.out) == (0, f"retried {_MANY} jobs\n")
    assert vox("job", "rebuild", "--check").code == 0


def test_jobs_of_which_few_fit_into_an_answer_are_listed_aborted_and_retried_all_the_same(
    vox: VoxCommand, shared_server: Server
) -> None:
    there = {"db_url": shared_server.url, "db_token": shared_server.token, "scope_id": new_key()}
    vox = vox.at(shared_server).having(VOX_MESH_SCOPE_ID=there["scope_id"])

    async def schedule(node: MeshNode) -> None:
        for batch in range(6):
            payloads = [f"{batch} {number} {'x' * 240_000}" for number in range(8)]
            await node.jobs.schedule_all([handler_manifest("test.large", each) for each in payloads])

    on_node(schedule, **there)
    assert len(vox("job", "list").out.splitlines()) == 49
    assert len(vox("job", "ready", "--limit", "48").out.splitlines()) == 25
    assert vox("job", "abort", "--kind", "test.large").out == "aborted 48 jobs\n"
    assert vox("job", "retry", "--state", "aborted").out == "retried 48 jobs\n"


def test_a_job_that_has_ended_is_retried_once_as_a_new_one(vox: VoxCommand) -> None:
    failed, good, pending = kind(vox, "test.fail", "--priority", "2"), kind(vox), kind(vox, "other")
    done(failed, good)
    (again,) = vox("job", "retry", failed, "--json").document
    assert {*again} == {"job_id", "ulid", "kind", "is_new", "spooled", "retry_of"}
    assert (again["retry_of"], again["is_new"], again["kind"]) == (failed, True, "test.fail")
    shown = vox("job", "show", again["job_id"], "--json").document
    assert (shown["state"], shown["retry_of"], shown["priority"]) == ("pending", failed, 2)
    twice = vox("job", "retry", failed, good)
    assert (twice.code, twice.out.splitlines()[-1]) == (0, "retried 1 job, 1 already retried")
    before = snapshot(vox)
    refused = vox("job", "retry", good, pending)
    assert (refused.code, f"wait until job {pending} has ended: it is pending" in refused.error) == (1, True)
    assert snapshot(vox) == before
    assert vox("job", "retry", "--kind", "test.*").out == "retried 0 jobs, 1 already retried\n"


def test_a_job_in_hand_goes_back_and_waits_as_long_as_is_said(vox: VoxCommand) -> None:
    job = kind(vox)
    taken(job)
    given = vox("job", "yield", job, "--delay", "1h", "--reason", "too early", "--json").document
    assert (given["state"], given["claimer"], given["failures"]) == ("pending", None, 0)
    assert given["reason"] == "too early"
    assert given["not_before_ms"] > given["created_ms"] + 3_500_000
    assert listed(vox, "ready") == []
    again = vox("job", "yield", job)
    assert (again.code, "claimed or running" in again.error) == (1, True)
