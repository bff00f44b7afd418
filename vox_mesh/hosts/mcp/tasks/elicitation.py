"""Elicitation: what a task asks its client as a form, and what the filled form answers.

A form is flat: a question whose answer is not is asked as text, which holds JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vox_mesh.errors import BadValue
from vox_mesh.hosts.mcp.rows import JOB_DIGITS, clip
from vox_mesh.hosts.mcp.tool_call import ToolCall
from vox_mesh.model.base.json_text import read_json

ACCEPT: Final = "accept"
DECLINE: Final = "decline"

_ANSWER: Final = "answer"
_FLAT: Final = frozenset({"string", "number", "integer", "boolean"})
_TEXT: Final = {"type": "string"}
_JSON: Final = {"type": "string", "description": "JSON"}


def input_requests(call: ToolCall, task: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a task asks, by the ids of the questions; text of others is fenced."""
    question, approval_id = task["question"], task["approval_id"]
    if question is not None:
        text = call.fence(question["text"], author=question["asked_by"])
        message = f"Job {task['job_id'][:JOB_DIGITS]} asks:\n{text}"
        return {question["question_id"]: _elicit(message, _form_of(question))}
    if approval_id is not None:
        message = (
            f"Job {task['job_id'][:JOB_DIGITS]} is scheduled after an approval only. A person who may"
            f" approve it runs `vox-mesh approvals approve {approval_id}`. Decline to withdraw the job."
        )
        return {approval_id: _elicit(message, {})}
    return {}


def _elicit(message: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": dict(properties), "required": [*properties]}
    return {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": message, "requestedSchema": schema},
    }


def _form_of(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the form for a question."""
    schema = question["schema"]
    if question["choices"]:
        return {_ANSWER: {"type": "string", "enum": [*question["choices"]]}}
    if schema is None:
        return {_ANSWER: _TEXT}
    if _is_flat_object(schema):
        return {str(name): _field_of(part) for name, part in schema["properties"].items()}
    return {_ANSWER: _field_of(schema) if schema.get("type") in _FLAT else _JSON}


def _is_flat_object(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema is of an object that must have all its properties, none of them nested."""
    properties = schema.get("properties") or {}
    is_object = schema.get("type") == "object" and bool(properties)
    is_whole = {*schema.get("required", ())} >= {*properties}
    return is_object and is_whole and all(part.get("type") in _FLAT for part in properties.values())


def _field_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    field: dict[str, Any] = {"type": schema["type"]}
    for name in ("title", "description"):
        if isinstance(schema.get(name), str):
            field[name] = clip(schema[name])
    if schema["type"] == "string" and all(isinstance(each, str) for each in schema.get("enum", [None])):
        field["enum"] = [*schema["enum"]]
    return field


def answer_of(question: Mapping[str, Any], content: Any) -> Any:
    """Return the answer that a filled form gives. Raises `BadValue` if the form is not filled."""
    schema = question["schema"]
    if not isinstance(content, Mapping):
        raise BadValue("content must be an object", hint="send the fields of the form")
    if not question["choices"] and schema is not None and _is_flat_object(schema):
        return dict(content)
    if _ANSWER not in content:
        raise BadValue(f"content must have the field {_ANSWER!r}", hint="send the fields of the form")
    answer = content[_ANSWER]
    is_json = not question["choices"] and schema is not None and schema.get("type") not in _FLAT
    return read_json(answer) if is_json and isinstance(answer, str) else answer
