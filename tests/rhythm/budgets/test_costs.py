"""What work costs: the formula, rates from a file, and resources of which not all is reported."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vox_mesh.errors import BadBudget, BadValue
from vox_mesh.model.rhythm.costs import CLASSED, PLAIN, Rates, Resources, parse_rates

AMOUNTS = st.floats(0, 1e6, allow_nan=False)
DEVICES = st.sampled_from(["A100", "4090", "MI300X", "TPU", "a.b"])
CLASSES = st.dictionaries(DEVICES, AMOUNTS, max_size=4)
ROLES = st.dictionaries(st.sampled_from(["", "planner", "exec"]), AMOUNTS, max_size=3)


@st.composite
def resources(draw: st.DrawFn) -> Resources:
    """What a system may tell, be it nothing."""
    amounts: dict[str, Any] = {name: draw(st.none() | AMOUNTS) for name in PLAIN}
    return Resources(**amounts | {name: draw(CLASSES) for name in CLASSED})


@st.composite
def rates(draw: st.DrawFn) -> Rates:
    """Any rates, with a default for some maps."""
    names = ("cpu_sec", "mem_gbs", "io_mb", "egress_mb", "storage_gbh")
    by_class = st.dictionaries(st.one_of(DEVICES, st.just("default")), AMOUNTS, max_size=4)
    by_role = st.dictionaries(st.sampled_from(["default", "planner"]), AMOUNTS, max_size=2)
    return Rates(
        role_rate_bu=draw(by_role),
        gpu_sec=draw(by_class),
        accel_sec=draw(by_class),
        **{name: draw(AMOUNTS) for name in names},
    )


@given(rates(), ROLES, resources())
def test_the_cost_is_the_sum_of_every_part_at_its_rate(
    rates: Rates, beats: dict[str, float], used: Resources
) -> None:
    parts = [
        count * rates.role_rate_bu.get(role, rates.role_rate_bu.get("default", 1.0))
        for role, count in beats.items()
    ]
    for name in CLASSED:
        known: dict[str, float] = getattr(rates, name)
        parts += [
            amount * known.get(device, known.get("default", 0.0))
            for device, amount in getattr(used, name).items()
        ]
    priced = {"disk_io_mb": "io_mb", "net_egress_mb": "egress_mb"}
    parts += [(getattr(used, name) or 0.0) * getattr(rates, priced.get(name, name)) for name in PLAIN]
    assert rates.total(beats, used) == pytest.approx(math.fsum(parts))


@given(rates(), resources(), resources())
def test_what_is_used_together_costs_as_much_as_one_after_the_other(
    rates: Rates, one: Resources, other: Resources
) -> None:
    apart = rates.total({"": 2}, one) + rates.total({"": 3}, other)
    assert rates.total({"": 5}, one + other) == pytest.approx(apart)


@given(resources(), resources())
def test_what_neither_reported_is_not_reported_by_their_sum_and_what_one_reported_is(
    one: Resources, other: Resources
) -> None:
    total = one + other
    for name in PLAIN:
        amounts = [each for each in (getattr(one, name), getattr(other, name)) if each is not None]
        assert getattr(total, name) == (sum(amounts) if amounts else None)
    for name in CLASSED:
        assert {*getattr(total, name)} == {*getattr(one, name), *getattr(other, name)}


@given(resources())
def test_resources_are_the_same_after_a_way_through_json(used: Resources) -> None:
    document = json.loads(json.dumps(used.as_json()))
    assert Resources.of(document) == used
    assert "null" not in json.dumps(document)


@given(resources(), resources())
def test_what_was_used_since_is_what_was_added(earlier: Resources, more: Resources) -> None:
    since = (earlier + more) - earlier
    for name in PLAIN:
        if (amount := getattr(more, name)) is not None:
            assert getattr(since, name) == pytest.approx(amount, abs=1e-6)
    for name in CLASSED:
        for device, amount in getattr(more, name).items():
            assert getattr(since, name)[device] == pytest.approx(amount, abs=1e-6)


def test_without_rates_a_beat_costs_one_and_all_else_nothing() -> None:
    used = Resources(cpu_sec=10, mem_gbs=10, disk_io_mb=10, gpu_sec={"A100": 10})
    assert Rates().total({"": 3.5}, used) == 3.5


def test_a_file_of_rates_says_it_all() -> None:
    text = """
        role_rate_bu: {planner: 2, default: 0.5}
        cpu_sec: 0.01
        io_mb: 0.1
        gpu_sec: {A100: 3, default: 1}
    """
    used = Resources(cpu_sec=100, disk_io_mb=10, gpu_sec={"A100": 1, "4090": 2})
    assert parse_rates(text).total({"planner": 1, "other": 2}, used) == pytest.approx(2 + 1 + 1 + 1 + 3 + 2)
    assert parse_rates("role_rate_bu: 3").total({"anyone": 2}, Resources()) == 6


def test_the_faults_of_a_file_are_reported_with_their_lines() -> None:
    with pytest.raises(BadBudget) as raised:
        parse_rates("cpu_sec: -1\ngpu_sec:\n  A100: much\ntokens: 3\n", "rates.yaml")
    assert [fault.split(" ")[:3] for fault in raised.value.faults] == [
        ["rates.yaml:1:", "cpu_sec:", "must"],
        ["rates.yaml:3:", "gpu_sec.A100:", "must"],
        ["rates.yaml:4:", "tokens:", "is"],
    ]


@pytest.mark.parametrize(
    ("amounts", "fault"),
    [
        ({"cpu_sec": -1}, "cpu_sec must be .* got -1"),
        ({"cpu_sec": True}, "cpu_sec must be .* got True"),
        ({"mem_gbs": math.inf}, "mem_gbs must be .* got inf"),
        ({"gpu_sec": 3}, "gpu_sec must be a map"),
        ({"gpu_sec": {"": 3}}, "device class of gpu_sec"),
        ({"gpu_sec": {"A100": "x"}}, r"gpu_sec\[A100\]"),
        ({"tokens": 3}, "got tokens"),
    ],
)
def test_what_is_no_resource_is_refused(amounts: dict[str, Any], fault: str) -> None:
    with pytest.raises(BadValue, match=fault):
        Resources.of(amounts)


@given(resources())
def test_effective_compute_units_are_estimated_apart_from_the_cost(used: Resources) -> None:
    text = "ecu: {cpu_sec: 2, gpu_sec: {A100: 40, default: 10}, accel_sec: 5}"
    rates = parse_rates(text)
    assert rates.ecu is not None
    gpu = sum(amount * (40 if device == "A100" else 10) for device, amount in used.gpu_sec.items())
    expected = 2 * (used.cpu_sec or 0) + gpu + 5 * sum(used.accel_sec.values())
    assert rates.ecu.of(used) == pytest.approx(expected)
    assert rates.total({"": 3}, used) == Rates().total({"": 3}, used)


def test_without_a_normaliser_there_are_no_effective_compute_units() -> None:
    assert Rates().ecu is None
    with pytest.raises(BadBudget, match="ecu"):
        parse_rates("ecu: {cpu_sec: -1}")
