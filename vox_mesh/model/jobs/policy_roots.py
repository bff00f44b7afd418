"""Policy roots: which of them a worker allows. A job names the policy bundle it was made for by its hash."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from vox_mesh.errors import BadSettings

_ROOT: Final = re.compile(r"sha256:[0-9a-f]{64}")
_VARIABLE: Final = "VOX_WORKER_POLICY_ROOTS"
_MAX_ROOTS: Final = 256
_MAX_NAMED: Final = 5

PolicyRoots = frozenset[str]


def parse_policy_roots(text: str | None) -> PolicyRoots | None:
    """Parse VOX_WORKER_POLICY_ROOTS; `None` if it is unset or empty: jobs need no policy root."""
    if not text or not text.strip():
        return None
    roots = [each.strip().lower() for each in text.split(",")]
    wrong = next((each for each in roots if not _ROOT.fullmatch(each)), None)
    if wrong is not None:
        raise BadSettings(
            f"{_VARIABLE}: each policy root must be sha256: and 64 hex digits, got {wrong[:80]!r}",
            hint="separate policy roots by commas",
        )
    if len(roots) > _MAX_ROOTS:
        raise BadSettings(
            f"{_VARIABLE}: at most {_MAX_ROOTS} policy roots are allowed, got {len(roots)}",
            hint="remove the ones that no job names any more",
        )
    return frozenset(roots)


def allows(roots: PolicyRoots | Sequence[str] | None, root: str | None) -> bool:
    """Return whether a worker with these roots runs a job with this one; a job may have none."""
    return roots is None or root in roots


def refusal(root: str | None, workers: Mapping[str, Sequence[str] | None]) -> str | None:
    """Return why none of these workers, by node, claims a job; `None` if one does or there are none."""
    if not workers or any(allows(roots, root) for roots in workers.values()):
        return None
    names = ", ".join(sorted(workers)[:_MAX_NAMED]) + (", …" if len(workers) > _MAX_NAMED else "")
    what = "it has no policy root" if root is None else f"policy root {root}"
    return f"{what}: not allowed by {_VARIABLE} of {names}"
