"""Questions as forms: every question has a flat form, and the filled form is an answer that fits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from vox_mesh.errors import BadValue
from vox_mesh.hosts.mcp.caller import ToolCaller
from vox_mesh.hosts.mcp.tasks.elicitation import answer_of, input_requests
from vox_mesh.hosts.mcp.tool_call import ToolCall
from vox_mesh.model.jobs.question import check_answer

_JOB = "ab" * 32
_POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "why": {"type": "string", "enum": ["a", "b"]}},
    "required": ["x", "why"],
}
_TEXT = {"answer": {"type": "string"}}
_JSON = {"answer": {"type": "string", "description": "JSON"}}


def asked(schema: Any = None, choices: tuple[str, ...] = ()) -> dict[str, Any]:
    """A question, as the API shows it."""
    return {
        "question_id": "q1",
        "asked_by": "worker",
        "text": "Which?",
        "choices": [*choices],
        "schema": schema,
    }


def requests_of(**task: Any) -> dict[str, Any]:
    """What a task asks."""
    call = ToolCall(cast(ToolCaller, SimpleNamespace()), {})
    return input_requests(call, {"job_id": _JOB, "question": None, "approval_id": None, **task})


@pytest.mark.parametrize(
    ("question", "form", "content", "answer"),
    [
        (asked(), _TEXT, {"answer": "so"}, "so"),
        (asked(choices=("a", "b")), {"answer": {"type": "string", "enum": ["a", "b"]}}, {"answer": "a"}, "a"),
        (asked({"type": "boolean"}), {"answer": {"type": "boolean"}}, {"answer": True}, True),
        (asked({"type": "integer"}), {"answer": {"type": "integer"}}, {"answer": 3}, 3),
        (asked(_POINT), _POINT["properties"], {"x": 1, "why": "b"}, {"x": 1, "why": "b"}),
        (asked({**_POINT, "required": ["x"]}), _JSON, {"answer": '{"x": 1}'}, {"x": 1}),
        (asked({"type": "array"}), _JSON, {"answer": "[1, 2]"}, [1, 2]),
        (asked({}), _JSON, {"answer": "null"}, None),
    ],
)
def test_a_filled_form_is_an_answer_that_fits_the_question(
    question: dict[str, Any], form: dict[str, Any], content: dict[str, Any], answer: Any
) -> None:
    ((key, request),) = requests_of(question=question).items()
    assert (key, request["method"]) == ("q1", "elicitation/create")
    schema = request["params"]["requestedSchema"]
    assert (schema["type"], schema["properties"]) == ("object", form)
    assert {*schema["required"]} == {*form} == {*content}
    assert answer_of(question, content) == answer
    check_answer({name: value for name, value in question.items() if value}, answer)


@pytest.mark.parametrize("content", [None, [], "a", {}, {"other": 1}, {"answer": "{"}])
def test_a_form_that_is_not_filled_is_refused(content: Any) -> None:
    with pytest.raises(BadValue):
        answer_of(asked({"type": "array"}), content)


def test_the_text_of_a_question_is_fenced() -> None:
    ((_, request),) = requests_of(question=asked()).items()
    message = request["params"]["message"]
    assert message.startswith(f"Job {_JOB[:12]} asks:\n<untrusted-")
    assert 'from="worker"' in message


def test_an_approval_is_shown_with_who_decides_on_it() -> None:
    ((key, request),) = requests_of(approval_id="a1").items()
    assert key == "a1"
    assert "`vox-mesh approvals approve a1`" in request["params"]["message"]
    assert requests_of() == {}
