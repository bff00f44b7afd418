"""`vox-mesh job verify` and `job bundle`: a proof that holds, and all that makes it not hold."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.cli.conftest import VoxCommand
from tests.cli.database.test_oplog import database
from tests.cli.jobs.test_job import kind, scheduled
from tests.support.jobs.job_scene import LARGE, done, taken
from vox_mesh.cli import app
from vox_mesh.jobs.exec.policy import SEARCH_PATH
from vox_mesh.model.jobs.proof import hash_of

_SEED: Final = 7
_STRANGER: Final = "ed25519:" + "3b" * 32


class FinishedJobs(NamedTuple):
    """Jobs that were done in a folder: a command, and one with a large output."""

    folder: Path
    command: str
    large: str


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> FinishedJobs:
    """Done once, for all tests of the module to copy."""
    folder = tmp_path_factory.mktemp("proofs")
    vox = VoxCommand.with_home(folder)
    command, large = scheduled(vox, "--", "echo", "hello")["job_id"], kind(vox, "test.large")
    done(command, large, home_dir=folder / ".vox", db_path=folder / ".vox/cache/db/local.db")
    return FinishedJobs(folder, command, large)


@pytest.fixture
def there(scene: FinishedJobs, vox: VoxCommand) -> FinishedJobs:
    """A copy of it, in the folder of the commands."""
    shutil.copytree(scene.folder, vox.folder, dirs_exist_ok=True)
    return scene._replace(folder=vox.folder)


def faults(vox: VoxCommand, job: str) -> list[str]:
    """What is wrong with the proof of a job."""
    ended = vox("job", "verify", job, "--json")
    shown: list[str] = ended.document["faults"]
    assert (ended.code, ended.document["valid"]) == ((1, False) if shown else (0, True))
    return shown


def test_a_proof_holds_and_names_its_job_and_worker(vox: VoxCommand, there: FinishedJobs) -> None:
    shown = vox("job", "verify", there.command[:10], "--json").document
    assert (shown["job_id"], shown["valid"], shown["faults"], shown["remarks"]) == (
        there.command,
        True,
        [],
        [],
    )
    trailers = shown["trailers"]
    assert trailers["Job-Id"] == f"blake3:{there.command}"
    assert {*trailers} == {
        *("Job-Id", "Proof-Of-Execution", "Worker-Id", "Attest-Program", "Attest-Sig"),
        *("Attest-Executable", "Attest-Environment"),
    }
    echo = shutil.which("echo", path=SEARCH_PATH)
    assert echo is not None
    assert trailers["Attest-Executable"] == hash_of(Path(echo).read_bytes())
    text = vox("job", "verify", there.large)
    assert (text.code, text.out.splitlines()[-1]) == (0, "the proof holds")


def test_what_was_not_done_by_a_worker_has_no_proof(vox: VoxCommand) -> None:
    pending, aborted, running = kind(vox), kind(vox), kind(vox)
    after = kind(vox, "test.next", "--after", aborted)
    taken(running)
    vox("job", "abort", aborted)
    assert faults(vox, pending) == ["it is pending: there is no proof before its end"]
    assert faults(vox, running) == ["it is running: there is no proof before its end"]
    for job in (aborted, after):
        (fault,) = faults(vox, job)
        assert "there is no proof: it was ended by AbortJob" in fault
    ended = vox("job", "bundle", aborted)
    assert (ended.code, ended.out, "there is no proof" in ended.err) == (1, "", True)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("UPDATE jobs SET manifest = replace(manifest, 'hello', 'bye')", "its manifest is that of job"),
        ("UPDATE jobs SET manifest = '{'", "its manifest can't be read"),
        (
            "UPDATE jobs SET state = 'failed'",
            "the table of jobs says state 'failed', and the proof 'succeeded'",
        ),
        ("UPDATE jobs SET exit_code = 1", "the table of jobs says exit_code 1, and the proof 0"),
        ("UPDATE jobs SET output_artifacts = '[]'", "the table of jobs says output_artifacts []"),
        ("UPDATE jobs SET output_artifacts = '['", "the table of jobs says output_artifacts '['"),
        ("UPDATE jobs SET claim_token = 2", "the table of jobs says claim_token 2, and the proof "),
        ("UPDATE jobs SET claimer = 'other'", "the table of jobs says node_id 'other'"),
        ("UPDATE jobs SET last_op = 'x'", "the op 'x' that ended it is not in the log"),
        (
            "UPDATE jobs SET last_op = (SELECT op_id FROM agent_oplog WHERE kind = 'StartWork')",
            "there is no proof: it was ended by StartWork",
        ),
        ("UPDATE agent_oplog SET accepted = 0 WHERE kind = 'CompleteJob'", "was refused"),
        (
            "UPDATE agent_oplog SET payload = replace(payload, '\"started_ms\":1', '\"started_ms\":2')"
            " WHERE kind = 'CompleteJob'",
            "the signature is not the worker's",
        ),
        (
            "UPDATE agent_oplog SET payload = json_remove(payload, '$.jobs[0].proof', '$.jobs[1].proof')"
            " WHERE kind = 'CompleteJob'",
            "has no proof",
        ),
        ("UPDATE agent_oplog SET payload = '{' WHERE kind = 'CompleteJob'", "was changed, or is not by"),
        ("UPDATE job_artifacts SET body = 'AAAA' WHERE body IS NOT NULL", "was damaged in the database"),
    ],
)
def test_whatever_is_changed_in_the_database_is_reported(
    vox: VoxCommand, there: FinishedJobs, change: str, fault: str
) -> None:
    with database(vox) as connection:
        assert connection.execute(f"{change}").rowcount > 0
    shown = faults(vox, there.command)
    assert [each for each in shown if fault in each], shown


@pytest.mark.parametrize(
    "change", [f"UPDATE node_keys SET public_key = '{_STRANGER}'", "DELETE FROM node_keys"]
)
def test_a_proof_does_not_depend_on_the_table_of_keys(
    vox: VoxCommand, there: FinishedJobs, change: str
) -> None:
    with database(vox) as connection:
        assert connection.execute(change).rowcount > 0
    assert faults(vox, there.command) == []
    assert vox("oplog", "verify").code == 1


def test_what_is_kept_elsewhere_is_a_remark_and_what_was_damaged_a_fault(
    vox: VoxCommand, there: FinishedJobs
) -> None:
    digits = hash_of(b"x" * LARGE).removeprefix("blake3:")
    file = there.folder / ".vox/artifacts" / digits[:2] / digits[2:]
    content = file.read_bytes()
    file.write_bytes(content + b"y")
    (fault,) = faults(vox, there.large)
    assert "large: " in fault
    assert "was damaged" in fault
    file.unlink()
    shown = vox("job", "verify", there.large, "--json")
    (remark,) = shown.document["remarks"]
    assert (shown.code, "large: " in remark, f"({LARGE} bytes) is on node" in remark) == (
        0,
        True,
        True,
    )
    assert "note: large: " in vox("job", "verify", there.large).out


def test_a_bundle_is_checked_where_there_is_nothing_else(
    vox: VoxCommand, there: FinishedJobs, tmp_path: Path
) -> None:
    worker = vox("job", "verify", there.command, "--json").document["trailers"]["Worker-Id"]
    printed = vox("job", "bundle", there.command).out
    done = vox("job", "bundle", there.command, "-o", "bundle.json", "--json").document
    assert (done["job_id"], done["bytes"]) == (there.command, len(printed))
    assert (vox.folder / "bundle.json").read_text() == printed
    assert (vox.folder / "bundle.json").stat().st_mode & 0o777 == 0o600  # whatever the umask is
    assert json.loads(printed)["job_id"] == there.command
    again = vox("job", "bundle", there.command, "-o", "bundle.json")
    assert (again.code, "already exists" in again.error) == (1, True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "bundle.json").write_text(printed)
    (elsewhere / ".env").write_text("VOX_DB_DRIVER=pigeon\n")  # which no command that reads settings survives
    alone = VoxCommand(elsewhere)
    check = ("job", "verify", "--file", "bundle.json")
    trusted = alone(*check, "--key", worker, "--json")
    assert (trusted.code, trusted.document["faults"], trusted.document["remarks"]) == (0, [], [])
    untrusted = alone(*check)
    assert (untrusted.code, "only you can tell" in untrusted.out) == (0, True)
    stranger = alone(*check, "--key", _STRANGER)
    assert (stranger.code, "wrong: it is by the worker" in stranger.out) == (1, True)
    assert sorted(path.name for path in elsewhere.iterdir()) == [".env", "bundle.json"]
    assert alone("job", "verify", "--file", "nowhere").code == 2


def test_a_bundle_with_a_large_output_holds_all_of_it(vox: VoxCommand, there: FinishedJobs) -> None:
    bundle: Any = json.loads(vox("job", "bundle", there.large).out)
    (large,) = bundle["artifacts"]
    assert (large["name"], large["size"], len(large["body"]) > LARGE) == ("large", LARGE, True)


def test_a_bundle_with_any_byte_changed_is_refused(
    vox: VoxCommand, there: FinishedJobs, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = vox("job", "bundle", there.command).out.encode()
    file = vox.folder / "changed.json"
    chance = random.Random(_SEED)
    for place in chance.sample(range(len(whole)), 60):
        byte = bytes([whole[place] ^ (1 << chance.randrange(7))])
        file.write_bytes(whole[:place] + byte + whole[place + 1 :])
        assert app.run(["job", "verify", "--file", str(file)]) == 1, (_SEED, place)
        assert "the proof does not hold" in capsys.readouterr().out
    for changed in (whole + b"\n", whole[:-1], b"", b"{}", whole.replace(b"hello", b"hallo")):
        file.write_bytes(changed)
        assert app.run(["job", "verify", "--file", str(file)]) == 1
        assert "wrong: " in capsys.readouterr().out
