"""Recalled verdicts: what became of a script whose op is in the log already."""

from __future__ import annotations

from collections.abc import Sequence

from vox_mesh.errors import ConstraintFailed, Refused, refused
from vox_mesh.store.rows import Row, Value
from vox_mesh.store.script import Outcome, Script, Verdict
from vox_mesh.store.write.script_statements import answered_rows


def recalled_verdict(script: Script, rows: Sequence[Row]) -> Verdict:
    """Return the verdict on a script that is in the log, from the rows of `verdicts_of`."""
    if not rows[0]["accepted"]:
        return _refusal(script, rows[0]["reason"])
    answers: list[Sequence[Value]] = [row for row in rows if row["n"] is not None]
    return Outcome(script.key, answered_rows(script, {script.key: answers}), repeated=True)


def _refusal(script: Script, reason: str | None) -> Refused | ConstraintFailed:
    for statement, text in script.refusals.items():
        if text == reason:
            return refused(text, statement=statement)
    return ConstraintFailed("script failed when it was first sent: the details are not stored", statement=0)
