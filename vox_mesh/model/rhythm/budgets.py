"""Budgets: limits on usage, and the verdicts on it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from functools import cached_property, partial
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, Field, PlainValidator, StringConstraints, model_validator

from vox_mesh.errors import BadBudget, BadValue
from vox_mesh.model.documents.validation import build_model, flaw, read_model, shown
from vox_mesh.model.rhythm.costs import CLASSED, PRIMITIVES, Amount, Resources
from vox_mesh.model.rhythm.policy import PHASES, STRICT
from vox_mesh.model.rhythm.tempo import Timeline
from vox_mesh.model.rhythm.tokens import INPUT, MAX_TOKENS, MONEY, OUTPUT, TOKENS, Money

BAR_DIGITS: Final = 4

WAITS: Final = ("help", "io")
"""The wait budgets of a score."""

DEFAULT_SHARE: Final = 10
"""A job without a limit of its own reserves this part of a budget: a tenth."""

_BARS: Final = re.compile(rf"bar\+(\d{{1,{BAR_DIGITS}}})", re.ASCII)
_SUBJECT: Final = re.compile(r"(agent|account):\S{1,200}")


class Verdict(StrEnum):
    """The consequence of spending: none, a warning, no new claims, or the end of the work."""

    OK = "ok"
    WARN = "warn"
    NO_CLAIMS = "no_claims"
    STOP = "stop"


def checked_subject(subject: str) -> str:
    """Return the subject if it is `agent:NAME` or `account:NAME`, else raise `BadValue`."""
    if not _SUBJECT.fullmatch(subject) or not subject.isprintable():
        raise BadValue(f"subject must be agent:NAME or account:NAME, got {subject!r}")
    return subject


def account_of(charge_to: str) -> str:
    """Return the subject of an account."""
    return f"account:{charge_to}"


def agent_of(name: str) -> str:
    """Return the subject of an agent."""
    return f"agent:{name}"


# --- fields ------------------------------------------------------------------------------------------


def _check_hard_end(value: Any) -> str:
    if isinstance(value, str) and (_BARS.fullmatch(value) or _parse_time_ms(value) is not None):
        return value
    raise flaw(f"{shown(value)} is no end")


def _parse_time_ms(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if moment.tzinfo is None else round(moment.timestamp() * 1_000)


def _check_ceilings(value: dict[str, Any]) -> dict[str, Any]:
    for name, ceiling in value.items():
        if name not in PRIMITIVES:
            raise flaw(f"is no resource; one of {', '.join(PRIMITIVES)}", name)
        try:
            Resources.of({name: ceiling})
        except BadValue as error:
            raise flaw(error.line, name) from None
    return value


def _check_names(caps: dict[str, float], what: str, names: tuple[str, ...]) -> dict[str, float]:
    for name in caps:
        if name not in names:
            raise flaw(f"is no {what}; one of {', '.join(names)}", name)
    return caps


def _check_money(value: Any) -> str:
    try:
        Money.of(value)
    except (BadValue, TypeError):
        raise flaw(f"{shown(value)} is no amount of money") from None
    return str(value)


def _check_reserve(value: dict[str, Any]) -> dict[str, Any]:
    for name, amount in value.items():
        if name == _MONEY:
            _check_money(amount)
        elif name not in (TOKENS, INPUT, OUTPUT):
            raise flaw(f"can't be reserved; one of {TOKENS}, {INPUT}, {OUTPUT}, {_MONEY}", name)
        elif type(amount) is not int or not 0 <= amount <= MAX_TOKENS:
            raise flaw(f"must be an integer from 0 to {MAX_TOKENS}, not {shown(amount)}", name)
    return value


_MONEY: Final = MONEY.rstrip(":")
_TokenLimit = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
_TOKENS_TEXT: Final = "a number of tokens, an integer from 0 to 1e12"
_PhaseCaps = Annotated[dict[str, Amount], AfterValidator(partial(_check_names, what="phase", names=PHASES))]
_WaitCaps = Annotated[
    dict[str, Amount], AfterValidator(partial(_check_names, what="wait budget", names=WAITS))
]
_Account = Annotated[str, StringConstraints(pattern="^[!-~]{1,200}$")]


class Thresholds(BaseModel):
    """The shares of a budget at which a verdict applies; of several, the strictest."""

    model_config = STRICT

    warn: Amount = Field(0.8, description="a share, such as 0.8")
    claims: Amount = Field(1.0, description="a share, such as 1.0")
    work: Amount = Field(1.25, description="a share, such as 1.25")

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        for lower, higher in (("warn", "claims"), ("claims", "work")):
            low, high = getattr(self, lower), getattr(self, higher)
            if low > high:
                at = lower if lower in self.model_fields_set else higher
                raise flaw(f"{lower} is {low:g} and {higher} {high:g}; allowed: warn <= claims <= work", at)
        return self


class SpendLimit(NamedTuple):
    """How much of a resource may be spent, and how much an attempt reserves of it."""

    most: int
    reserve: int


class Budget(BaseModel):
    """The limits of a job, an agent or an account. An absent limit is unbounded."""

    model_config = STRICT

    max_bu: Amount | None = Field(None, description="beats in all, a number from 0 to 1e12")
    phase_caps: _PhaseCaps = Field(default={}, description="a map of phases to beats")
    wait_caps: _WaitCaps = Field(default={}, description="a map of what is waited for (help, io) to beats")
    hard_end: Annotated[str, PlainValidator(_check_hard_end)] | None = Field(
        None, description="bar+K, or a time with its offset, such as 2030-01-31T08:00:00Z"
    )
    charge_to: _Account | None = Field(
        None, description="the account, up to 200 signs of ASCII without spaces"
    )
    per_beat: Annotated[dict[str, Any], AfterValidator(_check_ceilings)] = Field(
        default={}, description="a map of resources to how much of each a beat may use"
    )
    max_tokens: _TokenLimit | None = Field(None, description=_TOKENS_TEXT)
    max_input_tokens: _TokenLimit | None = Field(None, description=_TOKENS_TEXT)
    max_output_tokens: _TokenLimit | None = Field(None, description=_TOKENS_TEXT)
    max_money: Annotated[str, PlainValidator(_check_money)] | None = Field(
        None, description="an amount and a currency, such as 20.00 USD"
    )
    reserve: Annotated[dict[str, Any], AfterValidator(_check_reserve)] = Field(
        default={}, description="a map of tokens, input_tokens, output_tokens and money to amounts"
    )
    thresholds: Thresholds = Field(
        default_factory=Thresholds, description="a map of warn, claims and work to shares"
    )

    @model_validator(mode="before")
    @classmethod
    def _reject_empty(cls, fields: Any) -> Any:
        """Reject empty limits: they would not bound anything."""
        for name, value in fields.items() if isinstance(fields, Mapping) else ():
            if value is None:
                raise flaw("must not be empty or null; leave it out", name)
        return fields

    @model_validator(mode="after")
    def _check_currency(self) -> Self:
        if self.max_money is not None and _MONEY in self.reserve:
            most, reserve = Money.of(self.max_money), Money.of(self.reserve[_MONEY])
            if most.currency != reserve.currency:
                raise flaw(f"money must be in {most.currency}, got {reserve}", "reserve", _MONEY)
        return self

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Self:
        """Return the budget of a stored document, a manifest or fields made in code."""
        return build_model(cls, document, called="budget", bad=BadBudget)

    def document(self) -> dict[str, Any]:
        """Return the budget as it was written."""
        return self.model_dump(mode="json", exclude_unset=True)

    @cached_property
    def spend_limits(self) -> Mapping[str, SpendLimit]:
        """The limits of tokens and money, by resource; money is counted in millionths of its currency."""
        limits: dict[str, SpendLimit] = {}
        for name in (TOKENS, INPUT, OUTPUT):
            if (most := getattr(self, f"max_{name}")) is not None:
                limits[name] = SpendLimit(most, self.reserve.get(name, -(-most // DEFAULT_SHARE)))
        if self.max_money is not None:
            money = Money.of(self.max_money)
            given = Money.of(self.reserve[_MONEY]).micros if _MONEY in self.reserve else None
            reserve = -(-money.micros // DEFAULT_SHARE) if given is None else given
            limits[money.resource] = SpendLimit(money.micros, reserve)
        return limits

    @property
    def stop_bu(self) -> float | None:
        """The beats at which work is stopped."""
        return None if self.max_bu is None else self.thresholds.work * self.max_bu

    # --- consequences --------------------------------------------------------------------------------------

    def hard_end_ms(self, timeline: Timeline, since_ms: int) -> int | None:
        """Return when all work must end: `bar+0` is the end of the bar in which it began."""
        if self.hard_end is None:
            return None
        if (bars := _BARS.fullmatch(self.hard_end)) is None:
            return _parse_time_ms(self.hard_end)
        return timeline.downbeat_after(since_ms, int(bars[1]) + 1)

    def over_in_beat(self, used: Resources, beats: float = 1.0) -> Excess | None:
        """Return the first ceiling exceeded in a beat, or on average over several, or `None`."""
        for name, device, amount in used.amounts():
            ceiling = self.per_beat.get(name)
            if name in CLASSED and ceiling is not None:
                ceiling = ceiling.get(device)
            if ceiling is not None and amount > ceiling * beats:
                return Excess(name, device, amount / beats, ceiling)
        return None


class Excess(NamedTuple):
    """Usage of a resource above its ceiling per beat."""

    name: str
    device: str
    amount: float
    ceiling: float

    def __str__(self) -> str:
        what = f"{self.name}[{self.device}]" if self.device else self.name
        return f"{self.amount:.3g} {what} in a beat, where {self.ceiling:g} are allowed"

    def amount_in(self, used: Resources) -> float:
        """Return the used amount of this resource."""
        parts = (amount for name, device, amount in used.amounts() if (name, device) == self[:2])
        return next(parts, 0.0)


def capped(beats: Mapping[str, float], budgets: Iterable[Budget]) -> dict[str, float]:
    """Return the beats of phases, each limited to its lowest cap."""
    return _lowest_caps(beats, [each.phase_caps for each in budgets])


def capped_waits(beats: Mapping[str, float], budgets: Iterable[Budget]) -> dict[str, float]:
    """Return the beats of waits, each limited to its lowest cap."""
    return _lowest_caps(beats, [each.wait_caps for each in budgets])


def _lowest_caps(beats: Mapping[str, float], caps: list[dict[str, float]]) -> dict[str, float]:
    return {name: min([count, *(each.get(name, count) for each in caps)]) for name, count in beats.items()}


def verdict(spent_bu: float, budget: Budget) -> Verdict:
    """Return the verdict on an amount of spent beats."""
    return Verdict.OK if budget.max_bu is None else _verdict(spent_bu, budget.max_bu, budget.thresholds)


def verdict_on_spend(spent: Mapping[str, int], budget: Budget) -> Verdict:
    """Return the strictest verdict on spent tokens and money."""
    found = (
        _verdict(spent.get(name, 0), limit.most, budget.thresholds)
        for name, limit in budget.spend_limits.items()
    )
    return max(found, key=_STRICTNESS.index, default=Verdict.OK)


def stricter(one: Verdict, other: Verdict) -> Verdict:
    """Return the stricter of two verdicts."""
    return max(one, other, key=_STRICTNESS.index)


def _verdict(spent: float, most: float, at: Thresholds) -> Verdict:
    for share, what in ((at.work, Verdict.STOP), (at.claims, Verdict.NO_CLAIMS), (at.warn, Verdict.WARN)):
        if spent >= share * most:
            return what
    return Verdict.OK


_STRICTNESS: Final = tuple(Verdict)


def parse_budget(text: str | bytes, name: str = "budget") -> Budget:
    """Return the budget of a YAML text, under `budget:`. Raises `BadBudget` with all faults, by line."""
    return read_model(_BudgetFile, text, name, called="budget", bad=BadBudget).budget


class _BudgetFile(BaseModel):
    """A file that contains a budget."""

    model_config = STRICT

    budget: Budget = Field(description="a map")
