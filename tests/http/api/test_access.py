"""Every operation, for every client and input, as the table of operations has them."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Final, Literal, get_args, get_origin

import httpx
import pytest

from tests.support.messages.relaying import TOKEN, assert_problem
from tests.support.nodes.serving import READ_TOKEN, ServedNode
from tests.support.running.lengths import a_third
from vox_mesh.http.access import Scope
from vox_mesh.http.api.api import OPERATIONS
from vox_mesh.http.api.operations import Operation

pytestmark = pytest.mark.asyncio(loop_scope="module")

_NAME: Final = "ffffff"
"""A name that anything could have, and nothing has."""

_NEEDED: Final = {"resolve_address": {"address": "ucxl://a/b"}, "find_by_text": {"q": "x"}}
"""Parameters that an operation can't do without."""

_STRANGE_NAMES: Final = (
    *("%00", "a%00b", "%ED%A0%80", "%F0%9F%98%80", "..%2F..%2Fetc", "%20", "'%22;--", "9" * 30, "a" * 2_000),
    *("%E2%80%AE", "-1", "null", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "f" * 64),
)
_STRANGE_VALUES: Final[tuple[Any, ...]] = (
    *(None, True, 0, -1, 2**53, 2**63, 2**64 - 1, -(2**63), 1e308, 0.5),
    *("", "\0", "a\0b", "\u202e", "\U0001f600", "x" * 100_000, "9" * 400 + "d", "P" + "9" * 400 + "D", "-1s"),
    *([], {}, [None], [[]], ["x"] * 1_000, {"": ""}, {"cls": 1, "self": 2}),
)

each_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
each_with_a_body = pytest.mark.parametrize(
    "operation", [each for each in OPERATIONS if each.body is not None], ids=lambda each: each.name
)


def path_of(operation: Operation, name: str = _NAME) -> str:
    """The path of an operation, on something of this name; a usual name stands for one of a choice."""
    chosen = {
        each: get_args(kind)[0] for each, kind in operation.names.items() if get_origin(kind) is Literal
    }
    return operation.path.format(**dict.fromkeys(operation.names, name) | (chosen if name == _NAME else {}))


def body_of(operation: Operation) -> Any:
    """Something that may be a body, if there has to be one."""
    return None if operation.body is None else {}


async def status_of(served: ServedNode, operation: Operation, token: str) -> int:
    """How it is answered; the rest of an answer that goes on is not waited for."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    content = None if operation.body is None else b"{}"
    async with served.client.stream(
        operation.method, path_of(operation), headers=headers, content=content
    ) as answer:
        return answer.status_code


def assert_no_bug(answer: httpx.Response) -> None:
    """Whatever was sent, it is answered, and what is refused has a problem document."""
    asked = answer.request
    assert answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR, (asked.method, asked.url, answer.text)
    if answer.status_code >= HTTPStatus.BAD_REQUEST:
        assert_problem(answer, answer.status_code, answer.json()["code"])


# --- who asks ------------------------------------------------------------------------------------


@each_operation
async def test_without_the_token_nothing_is_answered(served: ServedNode, operation: Operation) -> None:
    for token, code in ((None, "token_missing"), ("another", "token_wrong")):
        answer = await served.ask(operation.method, path_of(operation), body_of(operation), token=token)
        assert_problem(answer, HTTPStatus.UNAUTHORIZED, code)


@each_operation
async def test_the_token_for_reading_is_good_for_that_only(served: ServedNode, operation: Operation) -> None:
    if operation.scope is not Scope.READ:
        answer = await served.ask(operation.method, path_of(operation), body_of(operation), token=READ_TOKEN)
        assert_problem(answer, HTTPStatus.FORBIDDEN, "read_only")
        return
    status = await status_of(served, operation, READ_TOKEN)
    assert status < HTTPStatus.INTERNAL_SERVER_ERROR
    assert status not in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
    assert status == await status_of(served, operation, TOKEN)


_EXACT: Final = {
    "export_log",
    "bundle_job",
    "read_job_result",
    "read_job_artifact",
    "read_job_logs",
    "show_task",
}
"""What can't be redacted: every byte of it is signed, or is what a job printed."""


async def test_what_is_asked_by_get_is_for_readers_and_all_else_is_not_unless_it_says_so() -> None:
    for operation in OPERATIONS:
        if operation.method == "GET":
            expected = Scope.RELAY if operation.name == "read_artifact" else Scope.READ
            assert operation.scope is (Scope.WRITE if operation.name in _EXACT else expected)
        elif operation.method in ("PUT", "PATCH", "DELETE"):
            assert operation.scope is Scope.WRITE


# --- what they send ------------------------------------------------------------------------------


@each_operation
async def test_a_question_that_is_not_known_is_refused(served: ServedNode, operation: Operation) -> None:
    given = _NEEDED.get(operation.name, {})
    answer = await served.ask(
        operation.method, path_of(operation), body_of(operation), params={**given, "no such": "thing"}
    )
    if answer.json()["code"] != "bad_path":  # where no name would do, that comes first
        assert_problem(answer, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_query")
        assert "no such" in answer.json()["detail"]


@each_with_a_body
async def test_a_body_has_to_be_json(served: ServedNode, operation: Operation) -> None:
    path = path_of(operation)
    as_text = {"Content-Type": "text/plain"}
    answer = await served.ask(operation.method, path, headers=as_text, content=b"{}")
    assert_problem(answer, HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "content_type")
    as_json = {"Content-Type": "application/json"}
    deep = b"[" * 100_000 + b"]" * 100_000
    for broken in (b"", b"{", b'"\\ud800"', b"\xff", b'{"a": NaN}', b'{"a": 1e400}', deep):
        answer = await served.ask(operation.method, path, headers=as_json, content=broken)
        assert_problem(answer, HTTPStatus.BAD_REQUEST, "not_json")


@each_with_a_body
async def test_a_body_of_another_shape_is_refused(served: ServedNode, operation: Operation) -> None:
    assert operation.body is not None
    is_open = operation.body.model_config.get("extra") == "allow"  # an event has the fields its host gives it
    bodies: tuple[Any, ...] = ([], "text", 1, *([] if is_open else [{"no such field": 1}]))
    for body in bodies:
        answer = await served.ask(operation.method, path_of(operation), body)
        assert_problem(answer, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_body")


@pytest.mark.soak
@each_operation
async def test_no_name_leads_to_a_bug(served: ServedNode, operation: Operation) -> None:
    if operation.names and operation.is_json:
        for name in a_third(_STRANGE_NAMES):
            answer = await served.ask(operation.method, path_of(operation, name), body_of(operation))
            assert_no_bug(answer)


@pytest.mark.soak
@each_with_a_body
async def test_no_value_in_a_body_leads_to_a_bug(served: ServedNode, operation: Operation) -> None:
    for body in _strange(operation.body):
        assert_no_bug(await served.ask(operation.method, path_of(operation), body))


def _strange(model: Any) -> Iterator[dict[str, Any]]:
    for name in model.model_fields:
        for value in a_third(_STRANGE_VALUES):
            yield {name: value}
    for value in _STRANGE_VALUES:
        yield dict.fromkeys(model.model_fields, value)


@each_operation
async def test_no_value_in_a_query_leads_to_a_bug(served: ServedNode, operation: Operation) -> None:
    if operation.query is None or not operation.is_json:
        return
    for name in operation.query.model_fields:
        for value in (
            "",
            "\0",
            "-1",
            "0",
            str(2**63),
            "9" * 400,
            "x" * 5_000,
            "bnVsbA",
            "WzFd",
            "\U0001f600",
        ):
            assert_no_bug(
                await served.ask(
                    operation.method, path_of(operation), body_of(operation), params={name: value}
                )
            )
