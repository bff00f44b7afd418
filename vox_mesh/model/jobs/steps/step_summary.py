"""What a proof says of the steps of a job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Self

from vox_mesh.model.documents.documents import has_keys, is_count
from vox_mesh.model.jobs.steps.step_row import MAX_NAME, StepRow, StepState, by_place, occurrence_names

_DIGEST: Final = re.compile("[0-9a-f]{64}")
_MAX_SUFFIX: Final = 8  # of the number of an occurrence
MAX_LISTED: Final = 100
"""The steps that a proof lists; the link covers all of them."""


class StepSummary(NamedTuple):
    """The number of steps, the last link of their rows, and the first steps with their digests."""

    total: int
    link: str
    listed: tuple[tuple[str, str, int, int], ...]
    """Of each step its name, the digest of its value, the claim token of its attempt and its time in ms."""

    @classmethod
    def of(cls, rows: Sequence[StepRow]) -> Self | None:
        """Return the summary of the stored rows of a job, or `None` if it has none."""
        if not rows:
            return None
        names = occurrence_names(rows)
        done = sorted((at, row) for at, row in by_place(rows).items() if row.state == StepState.DONE)
        listed = tuple(
            (names[at], row.digest, row.claim_token, row.ended_ms) for at, row in done[:MAX_LISTED]
        )
        return cls(len(names), rows[-1].link, listed)

    def document(self) -> dict[str, Any]:
        """Return the field of the envelope."""
        listed = [
            {"attempt": attempt, "digest": digest, "ms": ms, "name": name}
            for name, digest, attempt, ms in self.listed
        ]
        return {"link": self.link, "listed": listed, "total": self.total}


def is_step_summary(value: Any) -> bool:
    """Return whether a value from outside has the form of such a document."""
    if not has_keys(value, StepSummary._fields):
        return False
    is_headed = is_count(value["total"]) and value["total"] > 0 and _is_digest(value["link"])
    listed = value["listed"]
    return is_headed and type(listed) is list and len(listed) <= MAX_LISTED and all(map(_is_step, listed))


def _is_step(value: Any) -> bool:
    return (
        has_keys(value, ("attempt", "digest", "ms", "name"))
        and is_count(value["attempt"])
        and is_count(value["ms"])
        and _is_digest(value["digest"])
        and type(value["name"]) is str
        and len(value["name"]) <= MAX_NAME + _MAX_SUFFIX
    )


def _is_digest(value: Any) -> bool:
    return type(value) is str and _DIGEST.fullmatch(value) is not None
