"""`vox-mesh kind`: kinds of job are paused, limited and audited, and all of it is reported."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.cli.conftest import VoxCommand, assert_wrong_usage

_NOTHING: Final[dict[str, Any]] = {
    "kind": "a.b",
    "is_paused": False,
    "max_running": None,
    "rate": None,
    "rate_ms": None,
    "lease_ms": None,
    "is_audited": False,
}


def test_what_is_decided_of_a_kind_is_reported_and_what_is_not_named_stays(shared: VoxCommand) -> None:
    def decide(*arguments: str) -> Any:
        verb, *rest = arguments
        return shared("kind", verb, "a.b", *rest, "--json").document

    assert shared("kind", "list", "--json").document == []
    shown = {**_NOTHING, "is_paused": True}
    assert decide("pause") == shown
    shown |= {"max_running": 2}
    assert decide("limit", "--running", "2") == shown
    shown |= {"rate": 10, "rate_ms": 1_500, "lease_ms": 30_000}
    assert decide("limit", "--rate", "10/1500ms", "--lease", "30s") == shown
    assert shared("kind", "list", "--json").document == [shown]
    shown |= {"is_audited": True, "is_paused": False}
    decide("audit", "on")
    assert decide("resume") == shown
    heading, line = (each.split() for each in shared("kind", "list").out.splitlines())
    assert heading == ["kind", "paused", "running", "rate", "lease", "audited"]
    assert line == ["a.b", "no", "2", "10/1s500ms", "30s", "yes"]
    shown |= {"rate": None, "rate_ms": None, "max_running": None}
    assert decide("limit", "--rate", "none", "--running", "none") == shown
    decide("limit", "--lease", "none")
    assert decide("audit", "off") == _NOTHING
    assert shared("kind", "list").out == "none\n"


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("limit a.b", "no limit given: pass --running, --rate or --lease"),
        ("limit a.b --running many", "must be a whole number or none, got 'many'"),
        ("limit a.b --running 0", "max_running must be an integer from"),
        ("limit a.b --running -1", "must be a whole number or none, got '-1'"),
        ("limit a.b --rate 10", "must be a number per duration, such as 10/1s, or none, got '10'"),
        ("limit a.b --rate 10/", "such as 10/1s"),
        ("limit a.b --rate /1s", "such as 10/1s"),
        ("limit a.b --rate 10/soon", "'soon' is not a duration"),
        ("limit a.b --rate 10/0s", "per_ms must be an integer from"),
        ("limit a.b --rate 0/1s", "rate must be an integer from"),
        ("limit a.b --lease 1ms", "lease_ms must be an integer from"),
        ("limit a.b --lease forever", "'forever' is not a duration"),
        ("limit a.* --running 1", "a kind must be"),
        ("pause *", "a kind must be"),
        ("resume A", "a kind must be"),
        ("audit a.b perhaps", "'perhaps' is not one of 'on', 'off'"),
        ("audit a.b", "missing argument"),
    ],
)
def test_what_can_not_be_decided_ends_with_2_and_one_line(
    command: str, fault: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOX_MESH_ENABLED", "1")
    assert_wrong_usage(f"kind {command}", fault, capsys)


@pytest.mark.parametrize("command", ["pause a", "resume a", "limit a --running 1", "audit a on", "list"])
def test_on_the_memory_home_nothing_can_be_decided(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_wrong_usage(f"kind {command}", "needs a mesh, and", capsys)
