"""Spending: with what is reserved, no more is spent than a budget allows, but for what attempts overran."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import orjson

from proof.archived_log import log_rows
from proof.final_state import Row, final_rows
from proof.history import History
from proof.verdicts import Check
from proof.workloads.spending import KIND, MOST, RESERVED

_ENDS: Final = ("CompleteJob", "YieldWork")
_OTHER_ENDS: Final = ("ExpireWork", "AbortJob")
_CHARGE: Final = "ChargeTokens"
_FOLLOWED: Final = (*_ENDS, *_OTHER_ENDS, _CHARGE, "ClaimWork")


class _Account:
    """The account as the log has it: what was spent, what is reserved, and what was more than reserved."""

    def __init__(self) -> None:
        self.spent = 0
        self.excess = 0
        self._used: dict[str, int] = {}  # by running attempts

    @property
    def reserved(self) -> int:
        return sum(max(0, RESERVED - used) for used in self._used.values())

    def begin(self, job_id: str) -> None:
        self._used[job_id] = 0

    def charge(self, job_id: str, tokens: int) -> None:
        """Charge an attempt; one that is not held any more has no reservation."""
        self.spent += tokens
        before = self._used.get(job_id, RESERVED)
        self.excess += max(0, before + tokens - RESERVED) - max(0, before - RESERVED)
        if job_id in self._used:
            self._used[job_id] += tokens

    def end(self, job_id: str) -> None:
        self._used.pop(job_id, None)


def budget_not_exceeded(history: History) -> Iterator[str | int]:
    """Follow the log: after each claim, all that is spent and reserved is within the budget."""
    jobs = {row["job_id"] for row in final_rows(history, "jobs") if row["kind"] == KIND}
    account = _Account()
    for row in log_rows(history):
        if not row["accepted"] or row["kind"] not in _FOLLOWED:
            continue
        payload = orjson.loads(row["payload"])
        # A job that the database has lost is charged, too: its tokens were used.
        is_charge = row["kind"] == _CHARGE
        items = [payload] if is_charge else [each for each in payload["jobs"] if each["job_id"] in jobs]
        moved = _moved(row)
        for item in items:
            if moved is None or item["job_id"] in moved:
                _follow(account, row["kind"], payload, item)
        if row["kind"] == "ClaimWork" and items:
            yield 1
            total, most = account.spent + account.reserved, MOST + account.excess
            if total > most:
                yield (
                    f"after claim {row['op_id']}, {account.spent} tokens are spent and {account.reserved} "
                    f"reserved, where {MOST} are allowed and {account.excess} were more than reserved"
                )
    for limit in final_rows(history, "spend_limits"):
        if limit["spent"] != account.spent:
            yield f"{limit['subject']} has spent {limit['spent']} tokens, and {account.spent} by the log"


def _follow(account: _Account, kind: str, payload: dict[str, Any], item: dict[str, Any]) -> None:
    job_id = item["job_id"]
    if kind == "ClaimWork":
        if not payload.get("renews"):
            account.begin(job_id)
        return
    models = item.get("usage", {}).get("models", {}).values()
    account.charge(job_id, sum(each["input_tokens"] + each["output_tokens"] for each in models))
    if kind != _CHARGE:
        account.end(job_id)


def _moved(row: Row) -> set[str] | None:
    """Return the jobs that an op has changed; `None`: all that it names."""
    result = orjson.loads(row["result"]) if row["result"] else None
    return None if result is None else set(orjson.loads(result["moved"]))


SPENDING_CHECKS: Final = (
    Check(
        "budget-not-exceeded",
        "no more tokens are spent and reserved than a budget allows, but for what attempts overran",
        budget_not_exceeded,
    ),
)
