"""`vox-mesh job result` and `job artifact`: what jobs have produced, also on other nodes."""

from __future__ import annotations

from tests.cli.conftest import VoxCommand
from tests.cli.jobs.test_job import kind, scheduled
from tests.support.jobs.job_scene import LARGE, done


def test_the_result_of_a_job_is_printed_once_it_has_succeeded(vox: VoxCommand) -> None:
    handled = kind(vox, "test.work", "--payload", '{"n": [1, null]}')
    command = scheduled(vox, "--", "sh", "-c", "echo one; echo two; echo >&2 no")["job_id"]
    failing = kind(vox, "test.fail")
    early = vox("job", "result", handled)
    assert (early.code, "is pending" in early.error) == (1, True)
    done(handled, command, failing)
    assert vox("job", "result", handled, "--json").document == {
        "job_id": handled,
        "state": "succeeded",
        "result": {"n": [1, None]},
    }
    printed = vox("job", "result", command, "--wait", "--timeout", "10s")
    assert (printed.code, printed.out) == (0, "one\ntwo\n")
    failed = vox("job", "result", failing)
    assert (failed.code, "it can't be done" in failed.error) == (1, True)


def test_artifacts_are_listed_and_written_to_new_files(vox: VoxCommand) -> None:
    job = kind(vox, "test.large", "--payload", "1")
    done(job)
    names = [each["name"] for each in vox("job", "artifact", "list", job, "--json").document]
    assert sorted(names) == ["large", "result"]
    assert vox("job", "artifact", "get", job, "result").out == "1"
    target = vox.folder / "large.bin"
    assert vox("job", "artifact", "get", job, "large", "-o", str(target)).code == 0
    assert target.read_bytes() == b"x" * LARGE
    again = vox("job", "artifact", "get", job, "large", "-o", str(target))
    assert (again.code, "can't be written" in again.error) == (2, True)
    unknown = vox("job", "artifact", "get", job, "none")
    assert (unknown.code, "it has large, result" in unknown.error) == (1, True)


def test_an_artifact_on_another_node_can_t_be_read_without_its_node(vox: VoxCommand) -> None:
    job = kind(vox, "test.large")
    done(job)
    elsewhere = vox.having(VOX_MESH_HOME="elsewhere")
    refused = elsewhere("job", "artifact", "get", job, "large")
    assert (refused.code, "is on node" in refused.error) == (1, True)
