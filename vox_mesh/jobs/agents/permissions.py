"""Permissions: what an agent asks for is allowed or denied by its configuration, or becomes a question.

A question ends the attempt, as for any job. The answer is remembered for the attempts that follow: an agent
that asks for the same again gets it at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from vox_mesh.jobs.agents.config import AgentConfig, PermissionDecision
from vox_mesh.model.base.canonical import canonical, text_id
from vox_mesh.model.jobs.question import Question

ALLOW: Final = "allow"
ALLOW_KIND: Final = "allow all of this kind"
DENY: Final = "deny"

MAX_QUESTIONS: Final = 64
"""How often one job may ask; what it asks for afterwards is denied."""

_MAX_SHOWN: Final = 2_000
_MAX_NAME: Final = 200


@dataclass(frozen=True)
class PermissionRequest:
    """What an agent asks for. All of it is its own text, the kind too."""

    kind: str
    title: str
    details: Any

    @property
    def key(self) -> str:
        """Return what is the same for the same request, in any attempt."""
        return text_id(canonical([self.kind, self.title, _storable(self.details)]))

    def question(self, agent: str, config: AgentConfig) -> Question:
        """Return the question that a person answers."""
        shown = plain_text(canonical(_storable(self.details)), _MAX_SHOWN)
        title, kind = plain_text(self.title, _MAX_NAME), plain_text(self.kind, _MAX_NAME)
        text = (
            f"Agent {agent} asks for permission. What follows is its own text.\n"
            f"kind: {kind}\ntitle: {title}\ninput: {shown}"
        )
        return Question(
            text, choices=(ALLOW, ALLOW_KIND, DENY), to=config.ask, expires_s=config.ask_within
        ).checked()


@dataclass
class Decisions:
    """What people have decided in earlier attempts at a job, and which request is still open."""

    by_key: dict[str, str] = field(default_factory=dict)
    kinds: set[str] = field(default_factory=set)
    pending: tuple[str, str] | None = None
    """The key and kind of the request that was asked last."""

    @classmethod
    def resumed(cls, checkpoint: Any, answer: Any) -> Self:
        """Return the decisions of a checkpoint, with the answer to its open request."""
        self = cls()
        if not isinstance(checkpoint, Mapping):
            return self
        self.by_key = dict(checkpoint.get("decisions") or {})
        self.kinds = set(checkpoint.get("kinds") or ())
        pending = checkpoint.get("pending")
        if pending and answer is not None:
            key, kind = pending
            self.by_key[key] = DENY if answer not in (ALLOW, ALLOW_KIND) else ALLOW
            if answer == ALLOW_KIND:
                self.kinds.add(kind)
        return self

    def document(self) -> dict[str, Any]:
        """Return them as a checkpoint has them."""
        return {"decisions": self.by_key, "kinds": sorted(self.kinds), "pending": self.pending}

    def decide(self, request: PermissionRequest, config: AgentConfig) -> PermissionDecision:
        """Return what is done about a request: the configuration's denial counts first, then the answers."""
        configured = config.decision_for(request.kind)
        if configured is not PermissionDecision.ASK:
            return configured
        if (known := self.by_key.get(request.key)) is not None:
            return PermissionDecision.ALLOW if known == ALLOW else PermissionDecision.DENY
        if request.kind in self.kinds:
            return PermissionDecision.ALLOW
        return PermissionDecision.ASK if len(self.by_key) < MAX_QUESTIONS else PermissionDecision.DENY

    def ask(self, request: PermissionRequest) -> None:
        """Note the request that a question is about."""
        self.pending = (request.key, request.kind)


def _storable(value: Any) -> Any:
    """Return a JSON value that can be hashed: numbers and texts of any kind occur in an agent's input."""
    if isinstance(value, Mapping):
        return {str(name): _storable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(each) for each in value]
    return value if value is None or isinstance(value, bool) else str(value)


def plain_text(text: str, most: int) -> str:
    """Return text in ASCII, so that no character hides another, on one line and shortened."""
    plain = text.encode("ascii", "backslashreplace").decode()
    plain = "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in plain)
    return plain if len(plain) <= most else f"{plain[:most]}... ({len(plain) - most} more characters)"
