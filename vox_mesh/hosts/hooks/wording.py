"""Words for models: facts first, and names of other agents as data, never as markup or instructions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

from vox_mesh.locks.path_guard import Obstacle
from vox_mesh.model.locks.patterns import FILE

_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
_UNSAFE: Final = re.compile(r"[^\w ./@:+=,~*?#%()\[\]{}-]")
_MAX_SHOWN: Final = 120
_MAX_NAMED: Final = 5


def quoted(text: str, max_signs: int = _MAX_SHOWN) -> str:
    """Return a name or path in quotes: on one line, bounded, and without quotes or markup of its own."""
    shown = _UNSAFE.sub("_", " ".join(text.split()))
    return f'"{shown if len(shown) <= max_signs else shown[: max_signs - 1] + "…"}"'


def is_plain(name: str) -> bool:
    """Return whether a name can stand in a command unquoted, and reads like nothing but a name."""
    return _PLAIN.fullmatch(name) is not None


def held_reason(found: Sequence[Obstacle], agent: str, doing: str) -> str:
    """Return why an edit is denied: which paths others hold, until when, and what the agent can do."""
    lines = [f"vox-mesh denied {doing}: other agents hold locks on it."]
    for each in found[:_MAX_NAMED]:
        holder = each.holder
        mode = "shared lock" if holder.is_shared else "lock"
        lines.append(
            f"- {quoted(each.path)}: {mode} of agent {quoted(holder.holder_agent)} until {holder.expires_at}"
            f" ({round(holder.left_s)} s left) on {quoted(holder.lock_key)}"
        )
    if len(found) > _MAX_NAMED:
        lines.append(f"- and {len(found) - _MAX_NAMED} more locks")
    return "\n".join([*lines, *_advice(found, agent)])


def _advice(found: Sequence[Obstacle], agent: str) -> list[str]:
    paths = list(dict.fromkeys(each.path for each in found))[:_MAX_NAMED]
    holders = list(dict.fromkeys(each.holder.holder_agent for each in found))
    own = f" --agent {shlex.quote(agent)}" if is_plain(agent) else ""
    sender = f" --from {shlex.quote(agent)}" if is_plain(agent) else ""
    lines = ["Leave these files unchanged, by any tool. Do other work first, or:"]
    if all(path.isprintable() for path in paths):
        keys = " ".join(shlex.quote(FILE + path) for path in paths)
        lines.append(f"- wait for them: vox-mesh lock acquire {keys}{own} --wait 60s")
    known = [each for each in holders if is_plain(each)][:_MAX_NAMED]
    return lines + [
        f"- ask the holder: vox-mesh send {name} 'what you need, and why'{sender}" for name in known
    ]
