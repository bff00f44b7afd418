"""Templates: the capabilities of usual roles, to issue grants from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vox_mesh.errors import BadValue
from vox_mesh.model.grants.capability import Capability

_READER: Final = ("can mesh.read",)
_WORKER: Final = (*_READER, "can job.take", "can job.answer", "can message.send", "can message.receive")
_CODER: Final = (
    *_WORKER,
    *("can lock.acquire", "can job.schedule", "can op.append"),
    *("ask job.exec", "ask lock.break", "ask job.abort", "ask budget.set"),
)
_OPERATOR: Final = (
    *_WORKER,
    *("can lock.*", "can job.*", "can cron.*", "can rule.*", "can kind.set", "can conflict.resolve"),
    *("can op.append", "can budget.set", "can tempo.set", "can node.drain"),
)

TEMPLATES: Final = {
    "reader": _READER,
    "worker": _WORKER,
    "coder": _CODER,
    "operator": _OPERATOR,
    "owner": ("can *",),
}
"""The lines of each template. What only the owner's key can do stays the owner's, with any grant."""


def capabilities_of(lines: Sequence[str]) -> tuple[Capability, ...]:
    """Return the capabilities that lines describe; a line may also name a template."""
    texts = [text for line in lines for text in TEMPLATES.get(line.strip(), (line,))]
    found = tuple(dict.fromkeys(map(Capability.parse, texts)))
    if not found:
        raise BadValue(
            "a grant must have a capability",
            hint=f"name one, such as `lock.acquire on file:src/**`, or a template: {', '.join(TEMPLATES)}",
        )
    return found
