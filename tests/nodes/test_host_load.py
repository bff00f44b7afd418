"""The load of a machine: measured between samples, and absent where nothing can be measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.nodes.clocks import Clock
from vox_mesh.nodes.host_load import (
    CpuTimes,
    HostLoad,
    parse_gpu_utilisation,
    read_cpu_times,
    read_gpu_utilisation,
)


async def test_the_cpu_is_measured_between_two_samples() -> None:
    times = iter([CpuTimes(10, 100), CpuTimes(40, 140), CpuTimes(40, 140), CpuTimes(39, 180)])
    load = HostLoad(Clock(), cpu_times=lambda: next(times), gpu=_none)
    found = []
    for _ in range(4):
        await load.sample()
        found.append(load.cpu)
    assert found == [None, 0.75, 0.75, 0.0]


async def _none() -> None:
    """There is no GPU."""


async def test_a_gpu_is_asked_every_ten_seconds_and_a_missing_one_every_ten_minutes() -> None:
    clock, answers = Clock(), [0.5, None, 0.25]
    asked: list[float] = []

    async def gpu() -> float | None:
        asked.append(clock.now)
        return answers[len(asked) - 1]

    load = HostLoad(clock, cpu_times=lambda: CpuTimes(0, 0), gpu=gpu)
    start = clock.now
    for _ in range(1_220):
        await load.sample()
        clock.now += 0.5
    assert [at - start for at in asked] == [0, 10]
    await load.sample()
    assert (len(asked), load.gpu) == (3, 0.25)


def test_real_processors_have_been_busy() -> None:
    times = read_cpu_times()
    assert 0 < times.busy_s < times.total_s


@pytest.mark.parametrize(
    ("script", "expected"),
    [("echo 40; echo '[N/A]'; echo 81", 0.6), ("exit 9", None), ("echo none", None), ("exec sleep 60", None)],
)
async def test_a_program_that_fails_or_hangs_means_that_nothing_is_known(
    tmp_path: Path, script: str, expected: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vox_mesh.nodes.host_load._GPU_TIMEOUT_S", 0.2)
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    assert await read_gpu_utilisation(str(program)) is None, "it can't be run yet"
    program.chmod(0o700)
    if expected is not None:
        monkeypatch.undo()
    assert await read_gpu_utilisation(str(program)) == expected


def test_a_mean_stays_a_share() -> None:
    assert parse_gpu_utilisation("500\n") == 1.0
    assert parse_gpu_utilisation("") is None
