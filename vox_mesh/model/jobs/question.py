"""Questions: what an attempt asks for before its job can go on, and which answers fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.json_text import read_stored
from vox_mesh.model.messages.records import checked_agent

ANSWER: Final = "AnswerJob"
"""The op that answers a question; its id is that of the question."""

ESCALATE: Final = "EscalateQuestion"
"""The op that passes a question on to another agent."""

MAX_TEXT: Final = 4_096
MAX_CHOICES: Final = 64
MAX_ANSWER: Final = 64 * 1024
NEEDS_INPUT: Final = "it waits for an answer"
"""The reason of a job with an open question."""

EXPIRED: Final = "its question was not answered in time"

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}
_KEYWORDS: Final = frozenset({"type", "enum", "properties", "required", "items", "description", "title"})


class Question(NamedTuple):
    """A question with choices, or with a JSON schema, or with neither: then any JSON value is an answer.

    A schema has the keywords `type`, `enum`, `properties`, `required` and `items`.
    """

    text: str
    choices: Sequence[str] = ()
    schema: Mapping[str, Any] | None = None
    to: str | None = None
    """The agent that is asked, by a message; `None` if anyone may see it in the list."""
    expires_s: float | None = None
    """After this time without an answer the job is aborted; `None`: never."""
    escalate_to: str | None = None
    escalate_s: float | None = None
    """After this time without an answer the question goes to `escalate_to`."""

    def checked(self) -> Question:
        """Return the question. Raises `BadValue` if it is none that can be asked."""
        if not 1 <= len(self.text) <= MAX_TEXT:
            raise BadValue(f"a question must have 1 to {MAX_TEXT} characters, got {len(self.text)}")
        if self.choices and self.schema is not None:
            raise BadValue("a question must have either choices or a schema")
        if len(self.choices) > MAX_CHOICES or len(set(self.choices)) < len(self.choices):
            raise BadValue(f"choices must be distinct, and at most {MAX_CHOICES}")
        if self.schema is not None:
            _check_schema(self.schema)
            canonical(self.schema)
        if (self.escalate_to is None) != (self.escalate_s is None):
            raise BadValue("an escalation needs both an agent and a time")
        for agent in (self.to, self.escalate_to):
            if agent is not None:
                checked_agent(agent)
        return self

    def document(self, question_id: str, now_ms: int) -> dict[str, Any]:
        """Return the question as its op has it, with the id that its answer must have."""
        optional = {
            "choices": list(self.choices) or None,
            "schema": None if self.schema is None else dict(self.schema),
            "to": self.to,
            "expires_ms": None if self.expires_s is None else now_ms + round(self.expires_s * 1_000),
            "escalate_to": self.escalate_to,
            "escalate_ms": None if self.escalate_s is None else now_ms + round(self.escalate_s * 1_000),
        }
        given = {name: value for name, value in optional.items() if value is not None}
        return {"id": question_id, "text": self.text, **given}


def check_answer(question: Mapping[str, Any], answer: Any) -> None:
    """Raise `BadValue` if an answer does not fit a question, given as its op has it."""
    if len(canonical(answer)) > MAX_ANSWER:
        raise BadValue(f"an answer must have at most {MAX_ANSWER} bytes")
    choices = question.get("choices")
    if choices and answer not in choices:
        # An asker has written them: an error must not carry its text to the model that answers.
        raise BadValue(f"the answer must be one of the {len(choices)} choices of the question")
    schema = question.get("schema")
    if schema is not None and (fault := _fault_of(schema, answer, "the answer")) is not None:
        raise BadValue(fault)


def _check_schema(schema: Any, depth: int = 8) -> None:
    if not isinstance(schema, Mapping) or depth == 0:
        raise BadValue("a schema must be an object, at most 8 levels deep")
    if unknown := schema.keys() - _KEYWORDS:
        known = ", ".join(sorted(_KEYWORDS))
        raise BadValue(f"a schema of a question has no keyword {min(unknown)!r}", hint=f"it may have {known}")
    if "type" in schema and schema["type"] not in _TYPES:
        raise BadValue(f"a type must be one of {', '.join(_TYPES)}")
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping) or not isinstance(schema.get("required", []), list):
        raise BadValue("properties must be an object, and required a list")
    if not isinstance(schema.get("enum", []), list):
        raise BadValue("enum must be a list")
    for part in (*properties.values(), *([schema["items"]] if "items" in schema else [])):
        _check_schema(part, depth - 1)


def _fault_of(schema: Mapping[str, Any], value: Any, where: str) -> str | None:
    """Return why a value does not fit a schema, or `None`."""
    kind = schema.get("type")
    is_other_bool = isinstance(value, bool) and kind not in (None, "boolean")
    if kind is not None and (is_other_bool or not isinstance(value, _TYPES[kind])):
        return f"{where} must be of type {kind}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} must be one of the {len(schema['enum'])} values that its schema lists"
    if isinstance(value, dict):
        for name in schema.get("required", []):
            if name not in value:
                return f"{where} must have {name!r}"
        for name, part in schema.get("properties", {}).items():
            if name in value and (fault := _fault_of(part, value[name], f"{where}.{name}")) is not None:
                return fault
    if isinstance(value, list) and "items" in schema:
        faults = (_fault_of(schema["items"], each, f"{where}[{at}]") for at, each in enumerate(value))
        return next((fault for fault in faults if fault is not None), None)
    return None


class AskedQuestion(NamedTuple):
    """The last question of a job."""

    job_id: str
    question_id: str
    asked_by: str
    asked_of: str | None
    asked_ms: int
    expires_ms: int | None
    escalate_to: str | None
    escalate_ms: int | None
    question: str
    answered_by: str | None

    @property
    def document(self) -> dict[str, Any]:
        """Return the question as its op has it."""
        document: dict[str, Any] = read_stored(self.question)
        return document
