"""Alerts and dashboard: queries that can be read, of metrics that there are, and a page for each alert."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import httpx
import promql_parser
import pytest

from tests.deploy import schemas
from tests.deploy.files import DEPLOY, ROOT, SOME_TOKEN, documents
from tests.deploy.test_containers import compose, control_address
from tests.support.nodes.scraping import Scrape
from tools.homes import FILE
from vox_mesh import Mesh
from vox_mesh.http.metrics.rhythm_collector import ALARMS
from vox_mesh.model.nodes.liveness import NodeState, state_of
from vox_mesh.nodes.census import MAX_MESSAGES

_ALERTS: Final = DEPLOY / "prometheus" / "alerts.yaml"
_PROMETHEUS: Final = DEPLOY / "prometheus" / "prometheus.yaml"
_GRAFANA: Final = DEPLOY / "grafana"
_DASHBOARD: Final = _GRAFANA / "dashboards" / "vox-mesh.json"
_RUNBOOK: Final = ROOT / "docs" / "reference" / "alerts.md"
_METRICS: Final = ROOT / "docs" / "reference" / "metrics.md"
_WIDTH: Final = 24
_TIMEOUT_S: Final = 60.0
_THEIRS: Final = {"up", "ALERTS"}
"""What Prometheus itself knows."""

_LABELS: Final[dict[str, set[str]]] = {
    "vox_jobs": {"state", "kind"},
    "vox_jobs_ready": {"kind"},
    "vox_jobs_suspended": {"kind"},
    "vox_job_queued_to_started_seconds": set(),
    "vox_job_run_seconds": set(),
    "vox_jobs_in_hand": set(),
    "vox_store_rollbacks_total": set(),
    "vox_worker_places": set(),
    "vox_lease_expired_total": set(),
    "vox_fence_rejected_total": set(),
    "vox_lock_wait_seconds": set(),
    "vox_locks_held": set(),
    "vox_lock_waiters": set(),
    "vox_heartbeat_age_seconds": {"node"},
    "vox_heartbeat_missed_ticks": {"node"},
    "vox_nodes": {"state"},
    "vox_database_clock_correction_seconds": set(),
    "vox_database_clock_unconfirmed": set(),
    "vox_messages_unacked": set(),
    "vox_messages_overdue": set(),
    "vox_messages_dead": set(),
    "vox_message_delivery_seconds": set(),
    "vox_retention_pruned_rows_total": {"subject"},
    "vox_retention_needed_rows": {"subject"},
    "vox_retention_pass_age_seconds": set(),
    "vox_backup_age_seconds": {"scope", "repository"},
    "vox_backup_interval_seconds": {"scope", "repository"},
    "vox_backup_failures_total": {"scope", "repository"},
    "vox_archive_segments": set(),
    "vox_archive_bytes": set(),
    "vox_archive_pass_age_seconds": set(),
    "vox_archive_missing_segment": set(),
    "vox_write_buffer_depth": set(),
    "vox_write_batch_scripts": set(),
    "vox_writes_total": set(),
    "vox_write_failures_total": set(),
    "vox_spooled_scripts": set(),
    "vox_spooled_bytes": set(),
    "vox_spool_refused_scripts": set(),
    "vox_circuit_state": {"state"},
    "vox_replica_lag_seconds": set(),
    "vox_primary_requests_total": set(),
    "vox_chain_verify_failures_total": set(),
    "vox_clock_skew_seconds": set(),
    "vox_occ_conflicts_total": {"outcome"},
    "vox_conflicts_open": set(),
    "vox_part_restarts_total": {"part"},
    "vox_ready": set(),
    "vox_node_info": {"node", "version", "home"},
    "vox_beat_lateness_seconds": set(),
    "vox_tempo_bpm": set(),
    "vox_beat_index": set(),
    "vox_rhythm_leader": set(),
    "vox_rhythm_degraded": set(),
    "vox_rhythm_windows_missing_total": set(),
    "vox_status_claims_live": set(),
    "vox_status_claims_total": set(),
    "vox_bar_report_latency_seconds": set(),
    "vox_promises_total": {"verdict"},
    "vox_overruns_total": set(),
    "vox_kpi": {"name"},
    "vox_bar_tasks": {"state"},
    "vox_bar_claims": {"state"},
    "vox_bar_queue_depth": set(),
    "vox_bar_utilisation_ratio": {"resource"},
    "vox_rhythm_alarm": {"name"},
    "vox_budget_spent_ratio": {"subject"},
    "vox_http_requests_total": {"method", "route", "status"},
    "vox_http_request_seconds": set(),
    "process_resident_memory_bytes": set(),
    "process_cpu_seconds_total": set(),
    "process_open_fds": set(),
}
"""The metrics of a node that are used here, and their labels."""


def rules() -> list[dict[str, Any]]:
    """All alerts."""
    [found] = documents(_ALERTS)
    return [rule for group in found["groups"] for rule in group["rules"]]


def expression(alert: str) -> str:
    """The query of an alert."""
    [found] = [rule["expr"] for rule in rules() if rule["alert"] == alert]
    return str(found)


def dashboard() -> dict[str, Any]:
    """The dashboard."""
    found: dict[str, Any] = json.loads(_DASHBOARD.read_text())
    return found


def queries() -> Iterator[tuple[str, str]]:
    """All queries, each with the name of what asks it."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield f"{panel['title']} {target['refId']}", target["expr"].replace("$__rate_interval", "1m")
    for annotation in dashboard()["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]
    _, _, questions = _METRICS.read_text().partition("## Useful queries")
    yield from re.findall(r"^\| (.*\?) \| `(.*)` \|$", questions, re.MULTILINE)


def selectors(query: str) -> list[promql_parser.VectorSelector]:
    """The series that a query asks for; fails if Prometheus could not read it."""
    found: list[promql_parser.VectorSelector] = []

    def look(node: promql_parser.Expr) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)
        return True

    promql_parser.walk(promql_parser.parse(query), look)
    return found


def metric_of(series: str) -> str:
    """The metric that a series is of: a histogram has several."""
    return re.sub(r"_(bucket|sum|count)$", "", series)


QUERIES: Final = [*queries()]


@pytest.mark.parametrize("query", [query for _, query in QUERIES], ids=[name for name, _ in QUERIES])
def test_a_query_can_be_read_and_asks_for_metrics_and_labels_that_there_are(query: str) -> None:
    asked = selectors(query)
    assert asked
    for selector in asked:
        if selector.name in _THEIRS:
            continue
        assert selector.name is not None
        labels = _LABELS[metric_of(selector.name)]
        matched = {matcher.name for matcher in selector.matchers.matchers} - {"job", "instance"}
        assert matched <= labels
    of_metrics = {label for s in asked for label in _LABELS.get(metric_of(s.name or ""), ())}
    for group in re.findall(r"by \(([^)]*)\)", query):
        assert set(re.split(r",\s*", group)) - {"instance", "le"} <= of_metrics


def test_a_query_that_names_no_metric_of_ours_would_be_seen() -> None:
    [selector] = selectors("rate(vox_nonsense_total[5m]) > 0")
    assert selector.name not in _LABELS
    with pytest.raises(ValueError, match="unclosed"):
        promql_parser.parse("sum by (vox_ready")


def test_who_is_silent_is_asked_of_anyone_who_heard_of_them_last() -> None:
    asked = [query for _, query in QUERIES if "vox_heartbeat_" in query]
    assert len(asked) > 2
    for query in asked:
        assert query.count("vox_heartbeat_") == len(re.findall(r"min by \(node\) \(vox_heartbeat_", query)), (
            query
        )


def test_a_node_is_reported_when_it_is_dead_however_long_its_ticks_are() -> None:
    [bound] = re.findall(r"vox_heartbeat_missed_ticks\) >= (\d+)", expression("VoxNodeSilent"))
    tick_ms = 1_000
    silent_ms = int(bound) * tick_ms + tick_ms // 2
    states = [state_of(silent_ms - early, tick_ms, has_left=False) for early in (1, 0)]
    assert states == [NodeState.CRITICAL, NodeState.DEAD]


def test_messages_are_reported_also_where_no_more_of_them_are_counted() -> None:
    counted = f"max(vox_messages_unacked) >= {MAX_MESSAGES}"
    whole = promql_parser.parse(expression("VoxMessagesUnackedGrowing"))
    assert isinstance(whole, promql_parser.BinaryExpr)
    assert isinstance(whole.rhs, promql_parser.ParenExpr)
    assert isinstance(whole.rhs.expr, promql_parser.BinaryExpr)
    assert whole.rhs.expr.rhs.prettify() == promql_parser.parse(counted).prettify()


def test_a_node_that_sees_fresh_backups_hides_neither_a_blind_one_nor_another_scope() -> None:
    asked = [query for _, query in QUERIES if "vox_backup_" in query]
    assert len(asked) > 1
    for query in asked:
        assert query.count("vox_backup_") == query.count("max by (scope, repository) ("), query


def test_jobs_that_wait_for_their_time_or_for_others_are_not_stuck() -> None:
    asked = {selector.name for selector in selectors(expression("VoxJobsStuck"))}
    assert asked == {"vox_jobs_ready", "vox_job_queued_to_started_seconds_count"}


def test_each_alarm_of_a_bar_has_an_alert_of_its_own() -> None:
    asked = re.findall(r'vox_rhythm_alarm\{name="(\w+)"\}', "\n".join(rule["expr"] for rule in rules()))
    assert sorted(asked) == sorted(ALARMS)


def test_the_dashboard_shows_every_metric() -> None:
    shown = {metric_of(selector.name or "") for _, query in QUERIES for selector in selectors(query)}
    assert set(_LABELS) - shown == {"vox_node_info"}


async def test_a_real_node_tells_all_that_is_asked_for(tmp_path: Path) -> None:
    async with Mesh.open(FILE.settings(tmp_path, None, http=True, metrics_token=SOME_TOKEN)) as mesh:
        await mesh.jobs.schedule("example")
        address = await control_address(mesh)
        async with httpx.AsyncClient(base_url=address, timeout=_TIMEOUT_S, trust_env=False) as client:
            mentioned_lines = (
                await client.get("/metrics", headers={"Authorization": f"Bearer {SOME_TOKEN}"})
            ).raise_for_status()
    families = {family.name: family for family in Scrape(mentioned_lines.text).families}
    for metric, labels in _LABELS.items():
        samples = families[metric.removesuffix("_total")].samples
        given = {label for sample in samples for label in sample.labels} - {"le"}
        assert labels <= given or not samples, metric
    circuits = {sample.labels["state"] for sample in families["vox_circuit_state"].samples}
    assert circuits == {"closed", "open", "half_open", "off"}
    assert "pending" in {sample.labels["state"] for sample in families["vox_jobs"].samples}


def test_alerts_are_whole_and_each_has_a_heading_that_says_what_to_do() -> None:
    [found] = documents(_ALERTS)
    schemas.check(found, schemas.ALERTS)
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    headings = re.findall(r"^## (Vox\w+)\n\n(?=[^#\n])", _RUNBOOK.read_text(), re.MULTILINE)
    assert headings == names, "in the order of the alerts"
    for rule in rules():
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert ROOT / page == _RUNBOOK
        assert anchor == rule["alert"].lower()


def test_what_a_summary_tells_is_a_label_that_its_query_leaves() -> None:
    for rule in rules():
        mentioned_lines = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        groups = re.findall(r"^(?:max|min|sum)(?: by \(([^)]*)\))? ?\(", rule["expr"])
        if groups:
            assert mentioned_lines <= set(re.split(r",\s*", groups[0])), rule["alert"]


def test_prometheus_asks_the_nodes_of_the_project_with_the_token_that_only_reads() -> None:
    [config] = documents(_PROMETHEUS)
    [scrape] = config["scrape_configs"]
    services = compose()["services"]
    targets = [target for each in scrape["static_configs"] for target in each["targets"]]
    assert targets == [f"{name}:7400" for name in services if name.startswith("node-")]
    assert scrape["authorization"]["credentials_file"] == "/run/secrets/metrics_token"
    assert compose()["secrets"]["metrics_token"] == {"file": "./secrets/metrics_token"}
    assert services["prometheus"]["secrets"] == ["metrics_token"]
    mounted = {volume.split(":")[1] for volume in services["prometheus"]["volumes"]}
    assert {f"/etc/prometheus/{name}" for name in config["rule_files"]} <= mounted
    assert any(rule for rule in rules() if f'job="{scrape["job_name"]}"' in rule["expr"])


def test_the_dashboard_is_whole_and_no_panel_covers_another() -> None:
    found = dashboard()
    schemas.check(found, schemas.DASHBOARD)
    panels = found["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= _WIDTH
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        neighbour = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert neighbour or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def test_every_panel_follows_the_variables_of_the_dashboard() -> None:
    variables = [each["name"] for each in dashboard()["templating"]["list"]]
    assert variables == ["job", "instance", "kind"]
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            for selector in selectors(target["expr"].replace("$__rate_interval", "1m")):
                names = {each.name for each in selector.matchers.matchers if each.value == f"${each.name}"}
                has_kind = "kind" in _LABELS.get(metric_of(selector.name or ""), ())
                assert names == {"job", "instance", *(["kind"] if has_kind else [])}, target["expr"]


def test_grafana_finds_the_dashboard_and_its_source() -> None:
    [sources] = documents(_GRAFANA / "provisioning" / "datasources" / "prometheus.yaml")
    [source] = sources["datasources"]
    named = {json.dumps(panel["datasource"]) for panel in dashboard()["panels"] if "datasource" in panel}
    assert named == {json.dumps({"type": source["type"], "uid": source["uid"]})}
    assert source["url"] == "http://prometheus:9090"
    [providers] = documents(_GRAFANA / "provisioning" / "dashboards" / "vox-mesh.yaml")
    [provider] = providers["providers"]
    mounted = [volume.split(":") for volume in compose()["services"]["grafana"]["volumes"]]
    assert ["./grafana/dashboards", provider["options"]["path"], "ro"] in mounted


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_takes_the_alerts() -> None:
    done = subprocess.run(["promtool", "check", "rules", _ALERTS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
