"""What the writers were reported against what the table holds."""

from __future__ import annotations

from collections.abc import Iterable

from tests.support.running.processes import Report
from vox_mesh import Store

_NOTHING_APPLIED = frozenset({"Unreachable", "ServerFull", "CircuitOpen", "Overloaded", "DatabaseBusy"})


async def applied(store: Store, table: str, writer: str) -> set[tuple[int, int]]:
    """The scripts (caller, n) of a writer that were applied: each whole, and once."""
    found: set[tuple[int, int]] = set()
    callers = await store.read(f"SELECT DISTINCT caller FROM {table} WHERE writer = ?", (writer,))
    for caller in (row[0] for row in callers):  # one by one: a server answers with only this many bytes
        rows = await store.read(
            f"SELECT n, sum(part = 1), sum(part = 2), count(*) FROM {table} "
            "WHERE writer = ? AND caller = ? GROUP BY n",
            (writer, caller),
        )
        for row in rows:
            n, parts = row["n"], row[1:]
            assert parts == (1, 1, 2), f"script {n} of {writer}/{caller} left {parts}, not each row once"
            found.add((caller, n))
    return found


def assert_accounted_for(reports: Iterable[Report], found: set[tuple[int, int]], unreported: int = 0) -> None:
    """Acknowledged means applied; refused or not sent means not applied; unknown may be either.

    `unreported`: how many scripts a writer that was killed may have had under way.
    """
    result = {(report.get("caller", 0), report["n"]): report["outcome"] for report in reports}
    for script, answer in result.items():
        if answer == "applied":
            assert script in found, f"{script} was acknowledged and is lost"
        elif answer in _NOTHING_APPLIED:
            assert script not in found, f"{script} was reported as {answer} and yet was applied"
        else:
            assert answer == "OutcomeUnknown", f"{script} ended in {answer}"
    assert len(found - result.keys()) <= unreported, f"no caller got an answer for {found - result.keys()}"
