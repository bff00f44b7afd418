"""The document of the API, and requests that fit none of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import orjson
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped,unused-ignore]

from tests.support.messages.relaying import TOKEN, Wire, assert_problem
from tests.support.nodes.serving import READ_TOKEN, ServedNode
from tools import http_reference
from vox_mesh.http.api.api import OPERATIONS
from vox_mesh.http.api.openapi import document_of
from vox_mesh.http.api.performer import DOCUMENT

pytestmark = pytest.mark.asyncio(loop_scope="module")

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


def operations(document: Any) -> Iterator[tuple[str, str, Any]]:
    """Path, method and description of each operation."""
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            yield path, method.upper(), described


async def test_the_document_is_served_to_anyone_who_may_read(served: ServedNode) -> None:
    answer = await served.ask("GET", DOCUMENT, token=READ_TOKEN)
    assert answer.json() == orjson.loads(orjson.dumps(document_of(OPERATIONS)))
    known = {"If-None-Match": answer.headers["ETag"]}
    again = await served.ask("GET", DOCUMENT, headers=known)
    assert again.status_code == HTTPStatus.NOT_MODIFIED
    assert_problem(await served.ask("GET", DOCUMENT, token=None), 401, "token_missing")


async def test_every_operation_of_the_table_is_in_it_once_and_says_what_it_is_for() -> None:
    document = document_of(OPERATIONS)
    described = [*operations(document)]
    assert {(path, method) for path, method, _ in described} == {
        (each.path, each.method) for each in OPERATIONS
    }
    assert len(described) == len(OPERATIONS)
    assert [*Counter(each["operationId"] for *_, each in described).values()] == [1] * len(OPERATIONS)
    for path, _, each in described:
        assert re.fullmatch(r"[A-Z].+\.", each["summary"]), path
        assert {"401", "403", "422", "503"} <= set(each["responses"])
        in_path = [parameter["name"] for parameter in each["parameters"] if parameter["in"] == "path"]
        assert in_path == re.findall(r"\{(\w+)\}", path)


async def test_all_schemas_are_schemas_and_everything_that_they_name_is_there() -> None:
    document = document_of(OPERATIONS)
    text = orjson.dumps(document).decode()
    named = set(re.findall(r'"\$ref":"#/components/schemas/([^"]+)"', text))
    assert named <= set(document["components"]["schemas"])
    assert named >= {"Problem", "NodeView"}
    schemas = [*document["components"]["schemas"].values()]
    for *_, each in operations(document):
        schemas += [parameter["schema"] for parameter in each["parameters"]]
        bodies = [each.get("requestBody", {}), *each["responses"].values()]
        kinds = [kind for body in bodies for kind in body.get("content", {}).values()]
        schemas += [kind["schema"] for kind in kinds if kind]  # bytes have none
    for schema in schemas:
        Draft202012Validator.check_schema(schema)


async def test_other_methods_are_refused_by_name(served: ServedNode) -> None:
    for path in {each.path for each in OPERATIONS}:
        allowed = {each.method for each in OPERATIONS if each.path == path}
        somewhere = re.sub(r"\{\w+\}", "ffffff", path)
        for method in {*_METHODS} - allowed:
            answer = await served.ask(method, somewhere)
            assert answer.status_code == HTTPStatus.METHOD_NOT_ALLOWED, (method, path)
            assert set(answer.headers["Allow"].split(",")) == allowed, (method, path)
            if method != "HEAD":
                assert_problem(answer, HTTPStatus.METHOD_NOT_ALLOWED, "method_not_allowed")


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/v1/nodes/", 404),
        ("/v1//nodes", 404),
        ("/v1/nodes//", 404),
        ("/v1/nodes/..", 404),
        ("/v1/nodes/%2e%2e", 404),
        ("/v1/nodes/a%2Fb", 404),
        ("/v1/nodes/%2F", 404),
        ("/v1/nodes/%", 404),
        ("/v1/nodes/%zz", 404),
        ("/v1/nodes/%ff", 404),
        ("/v1/nodes/%00", 404),
        ("/v1/nodes?limit=1&limit=2", 422),
        ("/v1/nodes?limit=%D9%A3", 422),
        ("/v1/nodes?limit=", 422),
        ("/v1/nodes?limit=501", 422),
        ("/v1/nodes?limit=99999999999999999999999999", 422),
        ("/v1/nodes?limit=%ED%A0%80", 422),
        ("/v1/nodes?%00", 422),
        ("/v1/nodes?cursor=bnVsbA&cursor=", 422),
        ("/v1/nodes?cursor=!!", 422),
        ("/v1/nodes?cursor=WzFd", 422),
        ("/v1/nodes?cursor=Ilx1ZDgwMCI", 422),
        ("/v1/nodes?all=maybe", 422),
        ("/v1/nodes#fragment", 200),
        ("/v1/nodes;x=1", 404),
        ("/v1/jobs/ffffff/wait?timeout=1e9", 422),
        ("/v1/oplog?after=9223372036854775808", 422),
        ("/v1/oplog?cursor=LTE", 422),
        ("http://127.0.0.1/v1/nodes", 200),
        ("*", 400),
    ],
)
async def test_odd_requests_are_answered(served: ServedNode, target: str, status: int) -> None:
    head = f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    async with Wire(served.client.base_url.port or 0) as wire:
        await wire.send(head.encode())
        answered, body = await wire.answer()
    document = orjson.loads(body)
    assert answered == status, document
    assert answered == HTTPStatus.OK or document["status"] == status


async def test_the_page_about_the_api_is_up_to_date() -> None:
    assert http_reference.page() == http_reference.PAGE.read_text(), "run `python -m tools.http_reference`"
