"""The cost of work: beats, measured resources and tokens, at rates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, BeforeValidator, Field, StringConstraints, model_validator

from vox_mesh.errors import BadBudget, BadValue
from vox_mesh.model.documents.validation import flaw, read_model
from vox_mesh.model.rhythm.policy import STRICT
from vox_mesh.model.rhythm.tokens import ModelCharge, ModelPrice, TokenBill, TokenUsage

MOST: Final = 1e12
"""The largest amount accepted; a larger one is a mistake, and can be neither summed nor shown."""

_RANGE: Final = "from 0 to 1e12"

DEFAULT: Final = "default"
"""The key for all other names in a map of rates."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Used resources. What the system did not report is absent: `None`, or no entry."""

    cpu_sec: float | None = None
    mem_gbs: float | None = None
    """In gigabyte seconds."""
    disk_io_mb: float | None = None
    net_egress_mb: float | None = None
    storage_gbh: float | None = None
    """In gigabyte hours."""
    gpu_sec: Mapping[str, float] = field(default_factory=dict)
    """By device class, such as A100."""
    accel_sec: Mapping[str, float] = field(default_factory=dict)

    def __add__(self, other: Resources) -> Resources:
        if other is NOTHING:  # the usual case
            return self
        return self._combine(other, _sum, _sums)

    def __sub__(self, earlier: Resources) -> Resources:
        """Return the usage since an earlier measurement; what that lacks counts as 0."""
        return self._combine(earlier, _difference, _differences)

    def _combine(
        self,
        other: Resources,
        plain: Callable[[float | None, float | None], float | None],
        classed: Callable[[Mapping[str, float], Mapping[str, float]], Mapping[str, float]],
    ) -> Resources:
        amounts: dict[str, Any] = {
            name: (classed if name in CLASSED else plain)(getattr(self, name), getattr(other, name))
            for name in PRIMITIVES
        }
        return Resources(**amounts)

    def amounts(self) -> Iterator[tuple[str, str, float]]:
        """Yield each reported resource, its device class if any, and the amount."""
        for name in PLAIN:
            if (amount := getattr(self, name)) is not None:
                yield name, "", amount
        for name in CLASSED:
            for device, amount in getattr(self, name).items():
                yield name, device, amount

    def as_json(self) -> dict[str, Any]:
        """Return the reported resources as a JSON object."""
        if self is NOTHING:
            return {}
        document: dict[str, Any] = {}
        for name, device, amount in self.amounts():
            if device:
                document.setdefault(name, {})[device] = amount
            else:
                document[name] = amount
        return document

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Resources:
        """Return the resources of a JSON object. Raises `BadValue` if it is malformed."""
        for name, amount in document.items():
            if name in CLASSED:
                if not isinstance(amount, Mapping):
                    raise BadValue(
                        f"{name} must be a map of device classes to amounts, got {amount!r}",
                        hint=f'pass for example {name}={{"A100": 3.2}}',
                    )
                for device, each in amount.items():
                    if not isinstance(device, str) or not device:
                        raise BadValue(f"device class of {name} must be a text, got {device!r}")
                    _check(f"{name}[{device}]", each)
            elif name in PLAIN:
                _check(name, amount)
            else:
                raise BadValue(f"resource must be one of {', '.join(PRIMITIVES)}, got {name}")
        return cls(**document)


NOTHING: Final = Resources()
"""No resource was reported."""

PRIMITIVES: Final = tuple(each.name for each in fields(Resources))
CLASSED: Final = ("gpu_sec", "accel_sec")
"""The resources reported by device class."""

PLAIN: Final = tuple(name for name in PRIMITIVES if name not in CLASSED)


def _check(name: str, amount: Any) -> None:
    if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount <= MOST:
        raise BadValue(f"{name} must be a number {_RANGE}, got {amount!r}")


def _sum(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _sums(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {device: one.get(device, 0.0) + other.get(device, 0.0) for device in [*one, *other]}


def _difference(now: float | None, earlier: float | None) -> float | None:
    return None if now is None else max(0.0, now - (earlier or 0.0))


def _differences(now: Mapping[str, float], earlier: Mapping[str, float]) -> dict[str, float]:
    return {device: max(0.0, amount - earlier.get(device, 0.0)) for device, amount in now.items()}


# --- rates -------------------------------------------------------------------------------------------


def _expand_single_rate(value: Any) -> Any:
    """Return a single number as the rate of all."""
    return value if isinstance(value, dict) else {DEFAULT: value}


Amount = Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False)]
"""A number that can be spent."""

_RateMap = Annotated[dict[str, Amount], BeforeValidator(_expand_single_rate)]
_Currency = Annotated[str, StringConstraints(pattern="^[A-Z]{3}$")]
_ModelName = Annotated[str, StringConstraints(pattern="^[!-~]{1,128}$")]
_CLASSES: Final = "a map of classes of devices, or default, to numbers from 0; or one number for all"


class ComputeUnits(BaseModel):
    """How many effective compute units (ECU) a second of each device is worth: an estimate, for planning."""

    model_config = STRICT

    cpu_sec: Amount = Field(0.0, description="a number from 0")
    gpu_sec: _RateMap = Field(default={}, description=_CLASSES)
    accel_sec: _RateMap = Field(default={}, description=_CLASSES)

    def of(self, used: Resources) -> float:
        """Return the units of used resources. Unreported ones count for nothing."""
        by_class = _cost_by_class(used.gpu_sec, self.gpu_sec) + _cost_by_class(used.accel_sec, self.accel_sec)
        return (used.cpu_sec or 0.0) * self.cpu_sec + by_class


class Rates(BaseModel):
    """The price of each unit, in any currency. By default a beat costs 1 and everything else nothing.

    Tokens are charged apart from all else, in `currency`.
    """

    model_config = STRICT

    role_rate_bu: _RateMap = Field(
        default={DEFAULT: 1.0},
        description="a map of roles, or default, to numbers from 0; or one number for all",
    )
    cpu_sec: Amount = Field(0.0, description="a number from 0")
    mem_gbs: Amount = Field(0.0, description="a number from 0")
    io_mb: Amount = Field(0.0, description="a number from 0")
    egress_mb: Amount = Field(0.0, description="a number from 0")
    storage_gbh: Amount = Field(0.0, description="a number from 0")
    gpu_sec: _RateMap = Field(default={}, description=_CLASSES)
    accel_sec: _RateMap = Field(default={}, description=_CLASSES)
    ecu: ComputeUnits | None = Field(
        None, description="a map of cpu_sec, gpu_sec and accel_sec to effective compute units per second"
    )
    currency: _Currency | None = Field(None, description="three capital letters, such as USD")
    models: dict[_ModelName, ModelPrice] = Field(
        default={},
        description="a map of models, prefixes such as gpt-*, or default, to prices of input and output",
    )

    @model_validator(mode="after")
    def _check_currency(self) -> Self:
        if bool(self.models) != (self.currency is not None):
            raise flaw("models and currency must be given together", "models" if self.models else "currency")
        return self

    def price_of(self, model: str) -> ModelPrice | None:
        """Return the price of a model: its own, that of its longest prefix, or the default."""
        prefixes = (name for name in self.models if name[-1] == "*" and model.startswith(name[:-1]))
        return self.models.get(model) or self.models.get(max(prefixes, key=len, default=DEFAULT))

    def bill(self, tokens: TokenUsage) -> TokenBill:
        """Return what tokens cost. Those of a model without a price are counted as unpriced."""
        charges = []
        for model, count in tokens.by_model.items():
            price = self.price_of(model)
            micros, unpriced = (0, sum(count)) if price is None else (price.micros(count), 0)
            charges.append(ModelCharge(model, *count, micros, unpriced))
        return TokenBill(self.currency or "", charges)

    @cached_property
    def prices_resources(self) -> bool:
        """Whether anything but beats has a price."""
        plain = (self.cpu_sec, self.mem_gbs, self.io_mb, self.egress_mb, self.storage_gbh)
        return any(plain) or bool(self.gpu_sec or self.accel_sec)

    def of_role(self, role: str) -> float:
        """Return the price of a beat of a role, 1 by default."""
        return self.role_rate_bu.get(role, self.role_rate_bu.get(DEFAULT, 1.0))

    def total(self, beats: Mapping[str, float], used: Resources) -> float:
        """Return the cost of beats by role and of used resources. Unreported resources cost nothing."""
        work = sum(count * self.of_role(role) for role, count in beats.items())
        if used is NOTHING or not self.prices_resources:  # the usual case
            return work
        return (
            work
            + _cost_by_class(used.gpu_sec, self.gpu_sec)
            + _cost_by_class(used.accel_sec, self.accel_sec)
            + (used.cpu_sec or 0.0) * self.cpu_sec
            + (used.mem_gbs or 0.0) * self.mem_gbs
            + (used.disk_io_mb or 0.0) * self.io_mb
            + (used.net_egress_mb or 0.0) * self.egress_mb
            + (used.storage_gbh or 0.0) * self.storage_gbh
        )


def _cost_by_class(used: Mapping[str, float], rates: Mapping[str, float]) -> float:
    others = rates.get(DEFAULT, 0.0)
    return sum(amount * rates.get(device, others) for device, amount in used.items())


def parse_rates(text: str | bytes, name: str = "rates") -> Rates:
    """Return the rates of a YAML text. Raises `BadBudget` with all faults, by line."""
    return read_model(Rates, text, name, called="file of rates", bad=BadBudget)


# --- phrases -------------------------------------------------------------------------------------


class PhraseOutcome(StrEnum):
    """The outcome of a phrase."""

    DONE = "done"
    DEGRADED = "degraded"
    DEFERRED = "deferred"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PhraseBegin:
    """The beginning of an attempt at a job, kept until its end is recorded."""

    phrase_id: str
    job_id: str
    claim_token: int
    agent_id: str
    account: str
    role: str
    attempt: int
    began_ms: int


@dataclass(frozen=True, slots=True)
class PhraseEnd:
    """The recorded end of a phrase. Its cost and bar are derived from it."""

    phrase_id: str
    """A ULID."""
    agent_id: str
    task_id: str
    outcome: PhraseOutcome
    began_ms: int
    ended_ms: int
    beats: Mapping[str, float] = field(default_factory=dict)
    """Beats used, by phase."""
    waited: Mapping[str, float] = field(default_factory=dict)
    """Beats waited, by wait budget."""
    attempt: int = 1
    overruns: int = 0
    first_useful_ms: int | None = None
    resources: Resources = NOTHING
    account: str = ""
    """The account that is charged."""
    role: str = ""
    """The role whose rate is charged; empty for the default rate."""
    job_id: str | None = None
    note: str = ""

    @property
    def bu(self) -> float:
        """The total beats used: the unit of cost."""
        return sum(self.beats.values())
