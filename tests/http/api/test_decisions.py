"""Crons, rules, kinds and workers over HTTP."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest

from tests.support.messages.relaying import assert_problem
from tests.support.nodes.serving import ServedNode
from vox_mesh.store.script import new_key

pytestmark = pytest.mark.asyncio(loop_scope="module")


# --- crons ---------------------------------------------------------------------------------------


def cron(**changes: Any) -> dict[str, Any]:
    """A cron as it should be, but for the changes."""
    return {"expression": "0 8 * * MON-FRI", "manifest": {"kind": "test.report"}} | changes


async def test_a_cron_is_added_once_listed_and_removed(served: ServedNode) -> None:
    names = [f"{letter}-{new_key()}" for letter in "cab"]
    for name in names:
        body = (await served.ask("PUT", f"/v1/crons/{name}", cron())).json()
        assert (body["name"], body["timezone"], body["manifest"]) == (
            name,
            "UTC",
            {"kind": "test.report"},
        )
        assert (await served.ask("PUT", f"/v1/crons/{name}", cron())).json() == body
    listed = await served.all("/v1/crons", limit=2)
    assert [each["name"] for each in listed] == sorted(names)
    other = await served.ask("PUT", f"/v1/crons/{names[0]}", cron(expression="@daily"))
    assert_problem(other, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_value")
    for name in names:
        removed = await served.ask("DELETE", f"/v1/crons/{name}")
        assert removed.json() == {"name": name, "removed": True}
        assert_problem(await served.ask("DELETE", f"/v1/crons/{name}"), 404, "not_known")
    assert await served.all("/v1/crons") == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"expression": "61 * * * *"}, "bad_value"),
        ({"expression": "\0 * * * *"}, "bad_value"),
        ({"expression": "* " * 90}, "bad_value"),
        ({"expression": "9" * 199}, "bad_value"),
        ({"expression": "*/0 1-0 L W ?"}, "bad_value"),
        ({"timezone": "a\0b"}, "bad_value"),
        ({"timezone": "../../etc/passwd"}, "bad_value"),
        ({"timezone": "Mars/Olympus"}, "bad_value"),
        ({"timezone": "x" * 65}, "bad_body"),
        ({"manifest": {}}, "bad_manifest"),
        ({"manifest": [{"kind": "a"}]}, "bad_manifest"),
        ({"manifest": None}, "bad_manifest"),
        ({"manifest": {"kind": "a", "ulid": new_key()}}, "bad_manifest"),
    ],
)
async def test_what_would_never_come_is_refused(
    served: ServedNode, changes: dict[str, Any], code: str
) -> None:
    answer = await served.ask("PUT", "/v1/crons/never", cron(**changes))
    assert_problem(answer, HTTPStatus.UNPROCESSABLE_ENTITY, code)


# --- rules ---------------------------------------------------------------------------------------


def rule(**changes: Any) -> dict[str, Any]:
    """A rule as it should be, but for the changes."""
    return {"op_kind": "BreakLock", "manifest": {"kind": "test.report"}} | changes


async def test_a_rule_is_added_once_listed_and_removed(served: ServedNode) -> None:
    body = (await served.ask("PUT", "/v1/rules/report", rule(fields={"lock": "x"}))).json()
    assert (body["name"], body["fields"], body["manifest"]) == (
        "report",
        {"lock": "x"},
        {"kind": "test.report"},
    )
    assert await served.all("/v1/rules") == [body]
    other = await served.ask("PUT", "/v1/rules/report", rule())
    assert_problem(other, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_value")
    removed = await served.ask("DELETE", "/v1/rules/report")
    assert removed.json() == {"name": "report", "removed": True}
    assert_problem(await served.ask("DELETE", "/v1/rules/report"), 404, "not_known")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"op_kind": "ClaimWork"}, "bad_value"),
        ({"op_kind": "a\0b"}, "bad_value"),
        ({"op_kind": ""}, "bad_body"),
        ({"fields": {str(number): 1 for number in range(9)}}, "bad_body"),
        ({"fields": [1]}, "bad_body"),
        ({"manifest": {"kind": "a", "payload": {"op": 1}}}, "bad_manifest"),
    ],
)
async def test_a_rule_that_can_t_be_is_refused(
    served: ServedNode, changes: dict[str, Any], code: str
) -> None:
    answer = await served.ask("PUT", "/v1/rules/never", rule(**changes))
    assert_problem(answer, HTTPStatus.UNPROCESSABLE_ENTITY, code)


# --- kinds ---------------------------------------------------------------------------------------


async def test_a_kind_is_paused_and_resumed(served: ServedNode, kind: str) -> None:
    for verb, is_paused in (("pause", True), ("pause", True), ("resume", False)):
        body = await served.post(f"/v1/kinds/{kind}/{verb}")
        assert (body["kind"], body["is_paused"]) == (kind, is_paused)
        assert (kind in [each["kind"] for each in await served.all("/v1/kinds", limit=1)]) == is_paused


async def test_of_a_kind_changes_only_what_is_named_and_null_is_no_limit(
    served: ServedNode, kind: str
) -> None:
    async def changed(**limits: Any) -> dict[str, Any]:
        answer = await served.ask("PATCH", f"/v1/kinds/{kind}", limits)
        assert answer.status_code == HTTPStatus.OK, answer.text
        body: dict[str, Any] = answer.json()
        return body

    none = await changed(audited=False)
    assert none == {
        **dict.fromkeys(("max_running", "rate", "rate_ms", "lease_ms")),
        "kind": kind,
        "is_paused": False,
        "is_audited": False,
    }
    assert await changed(max_running=4) == {**none, "max_running": 4}
    limited = {**none, "max_running": 4, "rate": 10, "rate_ms": 60_000, "lease_ms": 5_000}
    assert await changed(rate=10, per="1m", lease=5) == limited
    assert await changed(max_running=None, audited=True) == {
        **limited,
        "max_running": None,
        "is_audited": True,
    }
    assert await changed(rate=None, lease=None, audited=False) == none


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({}, "bad_value"),
        ({"per": None}, "bad_value"),
        ({"rate": 10}, "bad_value"),
        ({"per": "1m"}, "bad_value"),
        ({"rate": 1, "per": "31d"}, "bad_value"),
        ({"lease": "2d"}, "bad_value"),
        ({"rate": 1, "per": 0}, "bad_body"),
        ({"max_running": 0}, "bad_body"),
        ({"max_running": 2**62}, "bad_body"),
        ({"audited": None}, "bad_body"),
        ({"max_running": 1, "audited": "perhaps"}, "bad_body"),
    ],
)
async def test_a_limit_that_is_none_is_refused_and_changes_nothing(
    served: ServedNode, kind: str, limits: dict[str, Any], code: str
) -> None:
    answer = await served.ask("PATCH", f"/v1/kinds/{kind}", limits)
    assert_problem(answer, HTTPStatus.UNPROCESSABLE_ENTITY, code)
    assert kind not in [each["kind"] for each in await served.all("/v1/kinds")]


# --- workers -------------------------------------------------------------------------------------


async def test_a_worker_is_drained_until_that_is_undone(served: ServedNode) -> None:
    node_id = served.node.identity.node_id
    path = f"/v1/workers/{node_id}/drain"
    assert await served.all("/v1/workers") == []
    for method, draining in (("PUT", True), ("PUT", True), ("DELETE", False), ("DELETE", False)):
        body = (await served.ask(method, path)).json()
        assert (body["node_id"], body["draining"]) == (node_id, draining)
        assert await served.all("/v1/workers") == ([body] if draining else [])
    for method in ("PUT", "DELETE"):
        answer = await served.ask(method, "/v1/workers/unknown/drain")
        assert_problem(answer, HTTPStatus.NOT_FOUND, "not_known")
