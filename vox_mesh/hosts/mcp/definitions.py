"""Definitions of tools: names, descriptions and flat schemas, written for few tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from vox_mesh.errors import BadValue

LOOKS: Final = (
    "jobs",
    "job",
    "ready",
    "output",
    "locks",
    "messages",
    "message",
    "agents",
    "nodes",
    "questions",
    "conflicts",
    "approvals",
    "kinds",
    "budgets",
    "spending",
    "log",
)
"""What can be looked at."""


@dataclass(frozen=True)
class ToolDefinition:
    """A tool: its inputs by name, each a JSON schema without `title`."""

    name: str
    description: str
    inputs: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...] = ()
    is_read_only: bool = False
    is_destructive: bool = False
    is_idempotent: bool = False

    @property
    def input_schema(self) -> dict[str, Any]:
        """The schema of its arguments."""
        schema: dict[str, Any] = {"type": "object", "properties": dict(self.inputs)}
        return {**schema, "required": [*self.required]} if self.required else schema

    @property
    def annotations(self) -> dict[str, bool]:
        """The hints for hosts; ones with their usual values are left out."""
        hints = {"openWorldHint": False}
        if self.is_read_only:
            return {"readOnlyHint": True, **hints}
        hints["destructiveHint"] = self.is_destructive
        return {"idempotentHint": True, **hints} if self.is_idempotent else hints

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments without nulls. Raises `BadValue` if they do not fit the schema."""
        given = {name: value for name, value in arguments.items() if value is not None}
        known = ", ".join(self.inputs) or "none"
        for name in given:
            if name not in self.inputs:
                raise BadValue(f"argument {name[:64]!r} is unknown to {self.name}", hint=f"known: {known}")
        for name in self.required:
            if name not in given:
                raise BadValue(f"argument {name} must be given", hint=f"call {self.name} with {name}")
        for name, value in given.items():
            _check_type(name, self.inputs[name], value)
        return given


_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def _check_type(name: str, schema: Mapping[str, Any], value: Any) -> None:
    kind = schema.get("type")
    is_flag = isinstance(value, bool)
    if kind is not None and (not isinstance(value, _KINDS[kind]) or is_flag != (kind == "boolean")):
        hint = "write it as a list of strings" if kind == "array" else ""
        raise BadValue(f"argument {name} must be of type {kind}, got {type(value).__name__}", hint=hint)
    if "enum" in schema and value not in schema["enum"]:
        raise BadValue(f"argument {name} must be one of {', '.join(schema['enum'])}, got {str(value)[:64]!r}")
    if kind == "array" and not all(isinstance(each, str) for each in value):
        raise BadValue(f"argument {name} must be an array of strings")


_TEXT: Final = {"type": "string"}
_FLAG: Final = {"type": "boolean"}
_COUNT: Final = {"type": "integer"}
_NUMBER: Final = {"type": "number"}
_TEXTS: Final = {"type": "array", "items": {"type": "string"}}
_ANY: Final[dict[str, Any]] = {}
_FULL: Final = {"type": "boolean"}


def _said(kind: Mapping[str, Any], description: str) -> dict[str, Any]:
    return {**kind, "description": description}


BRIEF: Final = ToolDefinition(
    "brief",
    "Start here: who you are, unread mail, your locks, jobs you could take, the beat.",
    {"full": _FULL},
    is_read_only=True,
)
LOCK: Final = ToolDefinition(
    "lock",
    "Lock files or other keys before you change them, all or none; again to renew."
    " Held by another: says by whom and until when.",
    {
        "keys": _said(_TEXTS, "paths from the project root (src/app.py, docs/**), or task:NAME"),
        "ttl_s": _said(_NUMBER, "default 600"),
        "wait_s": _said(_NUMBER, "up to 60"),
        "shared": _FLAG,
    },
    ("keys",),
    is_idempotent=True,
)
UNLOCK: Final = ToolDefinition(
    "unlock",
    "Release your locks when done.",
    {"keys": _said(_TEXTS, "default: all of yours")},
    is_idempotent=True,
)
SEND: Final = ToolDefinition(
    "send",
    "Send a message to an agent, role:NAME or * (everyone).",
    {
        "to": _TEXT,
        "body": _said(_ANY, "text or JSON"),
        "reply_to": _said(_TEXT, "message id"),
        "thread": _TEXT,
        "urgent": _FLAG,
    },
    ("to", "body"),
)
INBOX: Final = ToolDefinition(
    "inbox",
    "Receive your messages. ack each within 10 min, or it comes again.",
    {
        "limit": _said(_COUNT, "default 10"),
        "roles": _TEXTS,
        "wait_s": _said(_NUMBER, "up to 60"),
        "full": _FULL,
    },
)
ACK: Final = ToolDefinition(
    "ack",
    "Acknowledge messages you have dealt with, or reject them for redelivery.",
    {"ids": _TEXTS, "reject": _said(_TEXT, "reason")},
    ("ids",),
    is_idempotent=True,
)
SUBMIT: Final = ToolDefinition(
    "submit",
    "Schedule a job for a worker or another agent.",
    {
        "kind": _said(_TEXT, "exec runs command"),
        "payload": _said(_ANY, "JSON input"),
        "command": _said(_TEXTS, "argv, kind exec only"),
        "timeout_s": _NUMBER,
        "after": _said(_TEXTS, "ids of jobs that must succeed first"),
        "priority": _COUNT,
        "again": _said(_FLAG, "even if the same job exists"),
        "wait_s": _said(_NUMBER, "wait for its end, up to 60"),
        "full": _FULL,
    },
    ("kind",),
)
TAKE: Final = ToolDefinition(
    "take",
    "Take a ready job to do it yourself; report before its lease ends.",
    {
        "kinds": _said(_TEXTS, "default: all you may"),
        "wait_s": _said(_NUMBER, "up to 60"),
        "lease_s": _said(_NUMBER, "default 900"),
        "full": _FULL,
    },
)
REPORT: Final = ToolDefinition(
    "report",
    "Report on a job you took. progress renews the lease; needs_input asks a question.",
    {
        "job": _TEXT,
        "token": _said(_COUNT, "from take"),
        "outcome": {"enum": ["succeeded", "failed", "yielded", "needs_input", "progress"]},
        "result": _said(_ANY, "JSON"),
        "text": _said(_TEXT, "reason, question or note"),
        "choices": _said(_TEXTS, "answers to the question"),
        "fraction": _said(_NUMBER, "0 to 1"),
        "usage": _said({"type": "object"}, "input_tokens, output_tokens, model"),
    },
    ("job", "token", "outcome"),
)
LOOK: Final = ToolDefinition(
    "look",
    "Read the state of the mesh.",
    {
        "what": {"enum": [*LOOKS]},
        "id": _said(_TEXT, "for job, output, message; an agent for locks, log; a thread for messages"),
        "state": _TEXT,
        "kind": _TEXT,
        "limit": _said(_COUNT, "default 20"),
        "next": _said(_TEXT, "from the last answer"),
        "full": _said(_FLAG, "all fields"),
    },
    ("what",),
    is_read_only=True,
)
RESOLVE: Final = ToolDefinition(
    "resolve",
    "Settle what waits for a decision: a conflict (left, right, merge, or a row), the question of a job"
    " (the answer), an approval (approve, deny).",
    {
        "what": {"enum": ["conflict", "question", "approval"]},
        "id": _TEXT,
        "value": _said(_ANY, "the decision"),
        "reason": _TEXT,
    },
    ("what", "id", "value"),
    is_destructive=True,
)
BREAK: Final = ToolDefinition(
    "break",
    "Break another agent's locks on a key. Its later writes are refused.",
    {"key": _TEXT, "reason": _TEXT},
    ("key", "reason"),
    is_destructive=True,
)
PAUSE: Final = ToolDefinition(
    "pause",
    "Pause the jobs of a kind, or resume them.",
    {"kind": _TEXT, "resume": _FLAG},
    ("kind",),
    is_idempotent=True,
)
BUDGET: Final = ToolDefinition(
    "budget",
    "Set the budget of agent:NAME or account:NAME; without one, remove it.",
    {
        "subject": _TEXT,
        "max_tokens": _COUNT,
        "max_money": _said(_TEXT, "such as 20.00 USD"),
        "restart": _said(_FLAG, "count from now"),
    },
    ("subject",),
    is_destructive=True,
)

DEFINITIONS: Final = {
    each.name: each
    for each in (
        *(BRIEF, LOCK, UNLOCK, SEND, INBOX, ACK, SUBMIT, TAKE, REPORT, LOOK),
        *(RESOLVE, BREAK, PAUSE, BUDGET),
    )
}
