"""The benchmarks run and report; what they measure is not judged here."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from bench.environment import BenchEnvironment
from bench.figures import Figure, Found, LeftOut, Of, at_least, at_most
from bench.lines.registry import LINES
from bench.measure import QUICK
from bench.report.records import read
from bench.report.report import table
from bench.timing import measure_all
from tests.support.running.lengths import SOAK, only_at_full_length

_ROOT: Final = Path(__file__).resolve().parents[2]
_LIMIT_S: Final = 840.0 if SOAK else 150.0
_BEGUN_FILE: Final = {"job-begun-file-p50", "job-begun-file-p99"}
_IDLE_RECEIVERS: Final = {
    f"message-idle-{home}-{figure}" for home in ("file", "sqld") for figure in ("cpu", "stall")
}
_WITH_RATIO: Final = _BEGUN_FILE | {
    "one-caller-file",
    "cpu-enqueue-file",
    "cpu-lock-pair-file",
    "cpu-send-file",
    "64-callers-file",
    "4-processes-file",
    "one-caller-memory",
    "merged-file",
    "read-memory",
    "read-file",
    "visible-file-p50",
    "visible-file-p99",
    "lock-pair-file",
    "lock-pairs-file",
    "lock-hand-over-file",
    "message-sent-file",
    "message-acked-file",
    "message-received-file",
    "message-inbox-file",
    "message-inbox-file-claim",
    "job-scheduled-file",
    "job-done-1-file",
    "job-done-4-file",
    "job-scored-file",
    "job-scored-cpu-file",
    "job-chain-file",
    "job-fan-in-file",
    "message-idle-file-cpu",
    "message-idle-file-stall",
    "steps-one-file",
    "steps-rate-file",
    "job-crowded-done-file",
    "job-crowded-scheduled-file",
    *(
        f"growth-nodes-file-{cost}-{size}"
        for cost in ("tick", "append", "claim", "delivery")
        for size in (1, 4)
    ),
}
_WITHOUT_RATIO: Final = {"4-processes-file-wait", "4-processes-file-share", "job-fan-in-scheduled-file"}
_REPLICA_WITH_RATIO: Final = _IDLE_RECEIVERS | {
    "read-replica",
    "first-copy",
    "first-copy-restarted",
    "following-alongside",
    "following-behind",
    "visible-mesh-p50",
    "visible-mesh-p99",
}
_IDLE_SERVICE: Final = {"service-idle-memory", "service-idle-cpu", "service-idle-requests"}
_REPLICA_WITHOUT_RATIO: Final = _IDLE_SERVICE | {
    "read-replica-gain",
    "first-copy-memory",
    "first-copy-restarted-memory",
    "idle-mesh",
    "idle-file",
}
_LOG_WITH_RATIO: Final = {"oplog-append-sqld", "oplog-append-file", "oplog-append-one", "nodes-live"}
_LOG_WITHOUT_RATIO: Final = {
    "oplog-verify-file",
    "oplog-verify-export",
    "oplog-verify-growth",
    "nodes-writes",
}
_FLEET: Final = {f"fleet-3-{figure}" for figure in ("cpu", "pushed", "begun", "refused")}
_LOCKS_WITH_RATIO: Final = {
    "lock-pairs-sqld",
    "lock-pair-sqld",
    "lock-contended-file",
    "lock-contended-sqld",
    "lock-hand-over-mesh",
}
_LOCKS_WITHOUT_RATIO: Final = {"lock-share-file", "lock-share-sqld", "lock-guard"}
_CLAIMS_WITH_RATIO: Final = {
    "message-claim-many",
    "message-look-many",
    "message-claim-held-back",
    "message-look-held-back",
}
_MESSAGES_WITH_RATIO: Final = _CLAIMS_WITH_RATIO | {
    "message-relay-p50",
    "message-relay-p99",
    "message-watch-p50",
    "message-watch-p99",
    "message-sent-sqld",
    "message-acked-sqld",
    "message-received-sqld",
    "message-inbox-sqld",
    "message-inbox-sqld-claim",
}
_JOBS_WITH_RATIO: Final = {
    "job-scheduled-sqld",
    "job-done-1-sqld",
    "job-done-4-sqld",
    "job-begun-sqld-p50",
    "job-begun-sqld-p99",
    "job-crowded-done-sqld",
    "job-crowded-scheduled-sqld",
    *(
        f"job-roster-{question}"
        for question in ("state", "pending", "overdue", "ready", "counts", "oldest", "failed")
    ),
}
_STEPS_WITH_RATIO: Final = {"steps-one-sqld", "steps-rate-sqld", "steps-resume", "steps-suspended-woken"}
_STEPS_WITHOUT_RATIO: Final = {"steps-suspended-memory"}
_STARTUP: Final = {f"startup-{command}" for command in ("help", "lock", "guard", "send", "nodes")} | {
    f"startup-{command}-next-to-a-node" for command in ("lock", "guard", "send", "nodes")
}
_SERVICE_WITH_RATIO: Final = _STARTUP | {"service-up-file", "service-up-sqld", "service-command"}
_RHYTHM_WITH_RATIO: Final = {"rhythm-roll-up-file", "rhythm-roll-up-sqld"}
_RHYTHM_WITHOUT_RATIO: Final = {"rhythm-beat-idle", "rhythm-beat-loaded", "rhythm-drift", "rhythm-writes"}
_BUDGETS: Final = {
    "write-sqld",
    "write-memory",
    "write-file",
    "lock-pair",
    "enqueue",
    "claim",
    "completion",
    "worker",
    "send",
    "receive",
}
_FULL: Final = (
    pytest.mark.skipif(not SOAK, reason="all lines take long: part of `make soak`"),
    pytest.mark.timeout(900),
)
_ONCE: Final = (
    _IDLE_SERVICE
    | {"idle-mesh", "idle-file", "oplog-verify-growth", "nodes-writes"}
    | {"steps-suspended-memory", "steps-suspended-woken"}
    | _FLEET
)
"""Nothing happens, or grows, only once, and for longer."""


def _bench(*arguments: str) -> tuple[int, bytes]:
    command = [sys.executable, "-m", "bench", *arguments]
    ended = subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, timeout=_LIMIT_S, check=False)
    return ended.returncode, ended.stdout


def _check_record(record: dict[str, Any]) -> None:
    assert record["unit"] in {
        "us",
        "ms",
        "s",
        "1/s",
        "x",
        "MB",
        "MB/s",
        "%",
        "1/min",
        "1",
        "beats",
        "kB",
        "kB/s",
    }
    # A process need not grow, nor a beat be off, nor a claim be refused.
    may_be_nothing = record["unit"] in {"MB", "beats"} or record["name"].endswith("-refused")
    assert record["ours"] > 0 or may_be_nothing
    low, high = record["spread"]
    assert 0 < low <= high or may_be_nothing
    rounds = 1 if record["name"] in _ONCE else 2
    assert record["repetitions"] == len(record["rounds"]["ours"]) == rounds
    assert record["quick"] is True
    assert {"cores", "arch", "python", "sqlite", "server"} <= record["machine"].keys()
    assert (record["target"] is None) is (record["reached"] is None)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("names", "with_ratio", "without_ratio"),
    [
        (
            ("read-memory", "oplog-one-caller", "lock-guard", "message-claims", "job-begun-file"),
            {"read-memory", "oplog-append-one"} | _CLAIMS_WITH_RATIO | _BEGUN_FILE,
            {"lock-guard"},
        ),
        pytest.param(("memory", "file"), _WITH_RATIO, _WITHOUT_RATIO, marks=_FULL),
        pytest.param(
            ("read-replica", "first-copy", "following", "visible-mesh", "idle"),
            _REPLICA_WITH_RATIO,
            _REPLICA_WITHOUT_RATIO,
            marks=_FULL,
        ),
        pytest.param(
            ("oplog", "nodes-live", "nodes-writes"), _LOG_WITH_RATIO, _LOG_WITHOUT_RATIO, marks=_FULL
        ),
        pytest.param(("nodes-fleet",), set(), _FLEET, marks=_FULL),
        pytest.param(
            ("lock-pairs-sqld", "lock-pair-sqld", "lock-contended", "lock-hand-over-mesh", "lock-guard"),
            _LOCKS_WITH_RATIO,
            _LOCKS_WITHOUT_RATIO,
            marks=_FULL,
        ),
        pytest.param(
            ("message-relay", "message-watch", "message-rates-sqld", "message-inbox-sqld", "message-claims"),
            _MESSAGES_WITH_RATIO,
            set(),
            marks=_FULL,
        ),
        pytest.param(
            ("job-scheduled-sqld", "job-done-sqld", "job-begun-sqld", "job-roster", "job-crowded-sqld"),
            _JOBS_WITH_RATIO,
            set(),
            marks=_FULL,
        ),
        pytest.param(
            ("steps-one-sqld", "steps-rate-sqld", "steps-resume", "steps-suspended"),
            _STEPS_WITH_RATIO,
            _STEPS_WITHOUT_RATIO,
            marks=_FULL,
        ),
        pytest.param(("service-up", "service-command"), _SERVICE_WITH_RATIO, set(), marks=_FULL),
        pytest.param(("rhythm",), _RHYTHM_WITH_RATIO, _RHYTHM_WITHOUT_RATIO, marks=_FULL),
    ],
    ids=[
        "some of all",
        "memory and file",
        "replica",
        "log and nodes",
        "fleet",
        "locks",
        "messages",
        "jobs",
        "steps",
        "service",
        "rhythm",
    ],
)
def test_a_quick_run_keeps_well_formed_json_lines(
    names: tuple[str, ...], with_ratio: set[str], without_ratio: set[str], tmp_path: Path
) -> None:
    status, output = _bench(*names, "--quick", "--repeat", "2", "--json", "--results", str(tmp_path))

    assert status == 0
    (kept,) = tmp_path.glob("*.jsonl")
    assert kept.read_bytes() == output, "what is printed is what is kept"
    found = {record["name"]: record for record in map(orjson.loads, output.splitlines())}
    records = {name: record for name, record in found.items() if "left_out" not in record}
    assert records.keys() == with_ratio | without_ratio
    for record in records.values():
        _check_record(record)
    for name in with_ratio:
        low, high = records[name]["spread"]
        assert records[name]["raw"] > 0
        assert low <= records[name]["ratio"] <= high
    for name in without_ratio:
        assert records[name]["raw"] is None
        assert records[name]["ratio"] is None


@pytest.mark.soak
@only_at_full_length
def test_budgets_name_each_path_with_its_floor_and_its_layers() -> None:
    status, output = _bench("budget", "--quick")

    assert status == 0
    rows = [line.split("|")[1:-1] for line in output.decode().splitlines() if line.startswith("| `")]
    paths = {cells[0].strip(" `") for cells in rows}
    assert paths == _BUDGETS
    for _, _, ours, floor, _, _, statements, calls in rows:
        assert float(ours.split()[0].replace(",", "")) > 0
        assert float(floor.split()[0].replace(",", "")) > 0
        assert float(statements) > 0
        assert float(calls.replace(",", "")) > 0


def test_a_name_that_no_line_has_is_refused() -> None:
    status, output = _bench("no-such-line")
    assert (status, output) == (2, b"")


def test_a_line_that_fails_costs_no_one_else_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.jsonl"

    async def finds(_: BenchEnvironment) -> list[Found]:
        return [LeftOut("found", "what is found", "it is only a test")]

    async def fails(_: BenchEnvironment) -> list[Found]:
        assert read(kept.read_bytes()), "what the line before has found is kept already"
        raise RuntimeError("its server is gone")

    first, second, third = (
        replace(line, run=does, needs_server=False)
        for line, does in zip(LINES, (finds, fails, finds), strict=False)
    )
    outcome = measure_all([first, second, third], QUICK, kept, datetime.now(UTC), quick=True)

    assert [record.line for record in read(kept.read_bytes())] == [first.name, third.name]
    assert outcome.failed == [second.name]
    assert "(failed: RuntimeError: its server is gone)" in capsys.readouterr().err


def test_the_ratio_is_the_median_of_the_rounds_not_the_ratio_of_the_medians() -> None:
    figure = Figure("n", "what", "us", [10.0, 100.0, 30.0], [10.0, 50.0, 10.0], at_most(2.0))
    assert figure.ratio == 2.0
    assert figure.spread == (1.0, 3.0)
    assert figure.is_reached is True


@pytest.mark.parametrize(
    ("target", "ours", "reached"),
    [
        (at_most(100.0, Of.OURS), [1.0, 101.0, 1.0], False),
        (at_most(100.0, Of.OURS), [1.0, 99.0, 1.0], True),
        (at_least(0.8, Of.OURS), [1.0, 0.7, 1.0], False),
        (at_least(0.8, Of.OURS), [1.0, 0.9, 1.0], True),
    ],
)
def test_a_figure_of_the_worst_round_is_judged_by_its_worst_round(
    target: Any, ours: list[float], reached: bool
) -> None:
    figure = Figure("n", "what", "ms", ours, target=target, worst=True)
    assert figure.is_reached is reached
    assert math.isclose(figure.our_value, max(ours) if target.is_upper else min(ours))


def test_the_table_says_plainly_what_was_not_reached() -> None:
    missed = Figure("n", "what", "us", [3.0, 3.0], [1.0, 1.0], at_most(1.5))
    last = table([missed]).splitlines()[-1]
    said = ["what", "us", "3.00", "1.00", "3.00", "x", "3.00..3.00", "at", "most", "1.5", "x", "NO"]
    assert last.split() == said


def test_the_table_says_what_was_left_out_and_why() -> None:
    assert table([LeftOut("peer-x", "x on y", "no y was found")]).endswith("peer-x: left out, no y was found")
