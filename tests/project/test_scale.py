"""The model of scale and the simulated day: their laws hold, and the page shows the published figures."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bench.scale.inputs import Inputs
from bench.scale.model import BUSY, CODING, capacity, mean_wait_s, per_agent
from bench.scale.page import DAY, PAGE, fleet_of, page
from bench.scale.simulation import Fleet, simulate

_QUIET = Fleet(
    databases=1, nodes=10, agents=1_000, background=0.0, swing=0.0, burst=0, lost_nodes=0, seconds=7_200.0
)


def test_the_page_is_made_of_the_published_figures() -> None:
    assert PAGE.read_text() == page(Inputs.load_file(), json.loads(DAY.read_text())), (
        "run `python -m bench.scale.page`"
    )


def test_the_published_day_is_of_the_present_fleet() -> None:
    published = json.loads(DAY.read_text())["fleet"]
    assert Fleet(**published) == fleet_of(Inputs.load_file()), "run `python -m bench.scale.page --simulate`"


def test_a_server_is_as_busy_as_the_model_says() -> None:
    inputs = Inputs.load_file()
    found, agent = capacity(inputs, CODING), per_agent(inputs, CODING)
    assert found.agents * agent.server_cpu_s == pytest.approx(BUSY, rel=0.01)
    assert found.pushed_bytes_s == pytest.approx(found.log_bytes_s * found.nodes)


def test_jobs_are_neither_lost_nor_invented() -> None:
    for fleet in (_QUIET, replace(_QUIET, lost_nodes=3, burst=200, jobs_per_agent_hour=3.0)):
        result = simulate(fleet)
        assert result.arrived > 1_000
        assert result.arrived == result.completed + result.running + result.waiting
        assert result.waiting >= 0
        assert len(result.start_delays) == result.completed + result.running + result.lost
        assert len(result.recovery_delays) <= result.lost


def test_the_same_seed_gives_the_same_day() -> None:
    assert simulate(_QUIET, seed=7) == simulate(_QUIET, seed=7) != simulate(_QUIET, seed=8)


@pytest.mark.parametrize("utilisation", [0.3, 0.6])
def test_random_arrivals_wait_as_the_model_says(utilisation: float) -> None:
    # Without free slots nothing but the scheduling is served: an M/D/1 queue.
    rate, seconds = 20.0, 3_600.0
    cost_s = 3 * utilisation / rate  # scheduling is a third of it
    fleet = replace(_QUIET, agents=3_600, jobs_per_agent_hour=rate, job_cost_s=cost_s)
    result = simulate(replace(fleet, slots=0, seconds=seconds))
    waits = result.database_waits
    expected = mean_wait_s(utilisation / rate, utilisation)
    assert sum(waits) / len(waits) == pytest.approx(expected, rel=0.15)
    assert result.busy_s / seconds == pytest.approx(utilisation, rel=0.03)


def test_a_queue_that_is_always_busy_has_no_mean_wait() -> None:
    assert mean_wait_s(1.0, 0.5) == 0.5
    with pytest.raises(ValueError, match="below 1"):
        mean_wait_s(1.0, 1.0)
