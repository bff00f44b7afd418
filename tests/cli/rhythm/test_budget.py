"""`vox-mesh budget`: budgets are set, shown and removed, and what was spent is reported."""

from __future__ import annotations

import pytest

from tests.cli.conftest import VoxCommand, assert_wrong_usage

_FILE = "budget:\n  max_bu: 12\n  hard_end: bar+4\n  per_beat: {gpu_sec: {A100: 1}}\n"


def test_budgets_are_set_shown_and_removed(shared: VoxCommand) -> None:
    assert shared("budget", "show").out == "none\n"
    (shared.folder / "b.yaml").write_text(_FILE)
    said = shared("budget", "set", "account:acme", "b.yaml", "--json").document
    written = {"max_bu": 12.0, "hard_end": "bar+4", "per_beat": {"gpu_sec": {"A100": 1}}}
    assert (said["subject"], said["budget"]) == ("account:acme", written)
    shared("budget", "set", "agent:ann", "--max-bu", "2.5")
    assert shared("budget", "show", "account:acme", "--json").document == said
    heading, *lines = (line.split(maxsplit=2) for line in shared("budget", "show").out.splitlines())
    assert heading == ["subject", "max_bu", "more"]
    assert lines == [
        ["account:acme", "12", "hard_end bar+4, per_beat gpu_sec A100 1"],
        ["agent:ann", "2.5", "-"],
    ]
    shown = shared("budget", "report", "--json").document
    assert [(each["subject"], each["bu"], each["verdict"]) for each in shown] == [
        ("account:acme", 0.0, "ok"),
        ("agent:ann", 0.0, "ok"),
    ]
    assert shared("budget", "set", "agent:ann", "--none", "--json").document["budget"] is None
    assert shared("budget", "show", "agent:ann").code == 1


def test_what_a_job_has_used_is_reported_with_what_it_cost(vox: VoxCommand) -> None:
    (vox.folder / "rates.yaml").write_text("role_rate_bu: {exec: 1000}\n")
    (vox.folder / "job.yaml").write_text(
        "command: [/bin/sleep, '0.05']\ntimeout: 60\nbudget: {max_bu: 1000, charge_to: acme}\n"
    )
    assert vox("job", "schedule", "-f", "job.yaml").code == 0
    worker = vox.having(VOX_MESH_RATES="rates.yaml", VOX_AGENT_ID="ann")
    assert worker("worker", "run", "--exec", "--until-idle").code == 0
    shown = vox("budget", "report", "--json").document
    assert [each["subject"] for each in shown] == ["account:acme", "agent:ann"]
    for each in shown:
        assert each["phrases"] == 1
        assert each["bu"] >= 0.01
        assert each["cost"] == pytest.approx(1000 * each["bu"])
        assert each["resources"]["cpu_sec"] >= 0
        assert (each["max_bu"], each["since_ms"], each["verdict"]) == (None, None, "ok")
    assert vox("budget", "report", "account:acme", "--since", "1d", "--json").document == shown[:1]
    heading, line = (each.split() for each in vox("budget", "report", "agent:ann").out.splitlines())
    assert heading == ["subject", "phrases", "beats", "of", "cost", "verdict", "used"]
    assert (line[0], line[1], line[3], line[5]) == ("agent:ann", "1", "-", "ok")
    (vox.folder / "rates.yaml").write_text("ecu: {cpu_sec: 1000}\n")
    (found,) = worker("budget", "report", "agent:ann", "--json").document
    assert found["ecu"] == pytest.approx(1000 * found["resources"]["cpu_sec"])
    assert "ecu" in worker("budget", "report", "agent:ann").out.splitlines()[0]


def test_tokens_of_a_job_are_reported_with_their_price(vox: VoxCommand) -> None:
    (vox.folder / "rates.yaml").write_text("currency: USD\nmodels: {haiku: {input: 0.8, output: 4}}\n")
    agent = vox.having(VOX_MESH_RATES="rates.yaml", VOX_AGENT_ID="ann")
    assert vox("budget", "set", "agent:ann", "--max-tokens", "5000", "--max-money", "20 USD").code == 0
    assert vox("job", "schedule", "--kind", "write").code == 0
    (taken,) = agent("job", "take", "--json").document
    (held,) = vox("budget", "report", "agent:ann", "--json").document
    assert [(each["resource"], each["reserved"], each["most"]) for each in held["limits"]] == [
        ("money", "2.00", "20.00"),
        ("tokens", "500", "5000"),
    ]
    used = ("--input-tokens", "1000", "--output-tokens", "1", "--model", "haiku")
    token = str(taken["claim_token"])
    assert agent("job", "report", taken["job_id"], "succeeded", "--token", token, *used).code == 0
    (found,) = vox("budget", "report", "agent:ann", "--json").document
    assert [(each["resource"], each["spent"], each["reserved"]) for each in found["limits"]] == [
        ("money", "0.000804", "0.00"),
        ("tokens", "1001", "0"),
    ]
    heading, line = vox("budget", "tokens", "--agent", "ann").out.splitlines()
    assert heading.split() == ["day", "agent", "account", "kind", "model", "tokens"]
    assert line.endswith("ann    -        write  haiku  1000 in/1 out 0.000804 USD")
    shown = vox("budget", "report").out
    assert "money 0.000804+0.00 of 20.00 USD, tokens 1001+0 of 5000" in shown
    assert vox("budget", "set", "agent:ann", "--max-money", "much").code == 2


def test_the_faults_of_a_file_are_reported_line_by_line(vox: VoxCommand) -> None:
    (vox.folder / "b.yaml").write_text("budget:\n  max_bu: -1\n  tokens: 5\n")
    ended = vox("budget", "set", "agent:ann", "b.yaml")
    assert (ended.code, ended.out) == (2, "")
    assert [line.split(" ")[:2] for line in ended.err.splitlines()] == [
        ["b.yaml:2:", "budget.max_bu:"],
        ["b.yaml:3:", "budget.tokens:"],
    ]


def test_a_file_of_rates_that_can_not_be_used_is_reported_at_the_start(vox: VoxCommand) -> None:
    for text, fault in ((None, "VOX_MESH_RATES: rates.yaml can't be read"), ("cpu_sec: x", "rates.yaml:1:")):
        if text is not None:
            (vox.folder / "rates.yaml").write_text(text)
        ended = vox.having(VOX_MESH_RATES="rates.yaml")("budget", "report")
        assert ended.code == 2
        assert fault in ended.err
        assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("set ann --max-bu 3", "subject must be agent:NAME or account:NAME, got 'ann'"),
        ("set agent:ann", "pass exactly one of FILE, limits such as --max-bu N, and --none"),
        ("set agent:ann x.yaml --max-bu 3", "pass exactly one of"),
        ("set agent:ann --max-bu -1", "must be a number from 0 to 1e+12, got '-1'"),
        ("set agent:ann --max-bu nan", "got 'nan'"),
        ("set agent:ann --max-bu inf", "got 'inf'"),
        ("set agent:ann --max-bu 1e308", "got '1e308'"),
        ("set agent:ann --max-bu many", "got 'many'"),
        ("set agent:ann absent.yaml", "absent.yaml can't be read"),
        ("report --since soon", "'soon' is not a duration"),
    ],
)
def test_wrong_usage_ends_with_2_and_one_line(
    command: str, fault: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOX_MESH_ENABLED", "1")
    assert_wrong_usage(f"budget {command}", fault, capsys)
