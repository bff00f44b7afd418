"""Tokens of language models: how many were used of which model, and what they cost.

Money is an integer of millionths of a currency, so that sums are exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BaseModel, BeforeValidator, Field

from vox_mesh.errors import BadValue
from vox_mesh.model.documents.validation import flaw, shown
from vox_mesh.model.rhythm.policy import STRICT

MAX_TOKENS: Final = 10**12
"""The most tokens that a report or a budget can name."""

MAX_MODELS: Final = 16
"""The models that one attempt can use."""

MICROS: Final = 1_000_000
"""How many of the integers that money is counted in are one unit of the currency."""

MONEY: Final = "money:"
"""What the name of money as a resource begins with; the currency follows."""

INPUT: Final = "input_tokens"
OUTPUT: Final = "output_tokens"
TOKENS: Final = "tokens"
"""Both together, as a resource of budgets."""

TOKEN_FIELDS: Final = (INPUT, OUTPUT, "model")
"""The fields of a usage report that are about tokens."""

_MAX_MONEY: Final = 10**9
_MODEL: Final = re.compile(r"[!-~]{1,128}")
_MONEY_TEXT: Final = re.compile(r"([0-9]{1,10}(?:\.[0-9]{1,6})?) ([A-Z]{3})")
_MODEL_HINT: Final = "add the name of the model, such as model=claude-sonnet-4"


class TokenCount(NamedTuple):
    """Tokens that a model has read and written."""

    input: int = 0
    output: int = 0


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Used tokens, by model."""

    by_model: Mapping[str, TokenCount] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.by_model)

    def __add__(self, other: TokenUsage) -> TokenUsage:
        if not other.by_model:  # the usual case
            return self
        counts = dict(self.by_model)
        for model, count in other.by_model.items():
            before = counts.get(model, TokenCount())
            counts[model] = TokenCount(before.input + count.input, before.output + count.output)
        return TokenUsage(counts)

    def as_json(self) -> dict[str, dict[str, int]]:
        """Return the tokens as a JSON object: by direction, then by model."""
        return {
            INPUT: {model: count.input for model, count in self.by_model.items()},
            OUTPUT: {model: count.output for model, count in self.by_model.items()},
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> TokenUsage:
        """Return the tokens of a report: numbers with their `model`, or maps of models to numbers.

        Raises `BadValue` if it is malformed, or if tokens have no model.
        """
        model = document.get("model")
        if model is not None:
            checked_model(model)
        counts: dict[str, list[int]] = {}
        for place, name in enumerate((INPUT, OUTPUT)):
            for of_model, amount in _by_model(name, document.get(name, {}), model):
                counts.setdefault(checked_model(of_model), [0, 0])[place] = _checked_count(name, amount)
        if len(counts) > MAX_MODELS:
            raise BadValue(f"models of a report must be at most {MAX_MODELS}, got {len(counts)}")
        return cls({name: TokenCount(*both) for name, both in counts.items() if any(both)})


NO_TOKENS: Final = TokenUsage()
"""No tokens were reported."""


def checked_model(model: Any) -> str:
    """Return the name of a model. Raises `BadValue` if it can't be one."""
    if not isinstance(model, str) or not _MODEL.fullmatch(model):
        raise BadValue(f"model must be 1 to 128 visible ASCII characters, got {model!r:.100}")
    return model


def _by_model(name: str, amounts: Any, model: str | None) -> Iterator[tuple[Any, Any]]:
    if isinstance(amounts, Mapping):
        yield from amounts.items()
    elif model is None:
        raise BadValue(f"{name} must have a model", hint=_MODEL_HINT)
    else:
        yield model, amounts


def _checked_count(name: str, amount: Any) -> int:
    is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
    if not is_number or not 0 <= amount <= MAX_TOKENS or amount != int(amount):
        raise BadValue(f"{name} must be an integer from 0 to {MAX_TOKENS}, got {amount!r:.100}")
    return int(amount)


# --- money ---------------------------------------------------------------------------------------


class Money(NamedTuple):
    """An amount of money, in millionths of the currency."""

    micros: int
    currency: str

    @property
    def resource(self) -> str:
        """The name of the resource that is spent."""
        return MONEY + self.currency

    def __str__(self) -> str:
        return f"{money_text(self.micros)} {self.currency}"

    @classmethod
    def of(cls, text: str) -> Money:
        """Return the money of a text such as `20.00 USD`. Raises `BadValue` if it is none."""
        found = _MONEY_TEXT.fullmatch(text)
        if found is None or Decimal(found[1]) > _MAX_MONEY:
            raise BadValue(
                f"money must be an amount and a currency, got {text!r:.100}",
                hint="for example `20.00 USD`; up to 6 decimals, at most 1e9",
            )
        return cls(int(Decimal(found[1]) * MICROS), found[2])


def money_text(micros: int) -> str:
    """Return money as a decimal with at least two places."""
    whole, part = divmod(micros, MICROS)
    digits = f"{part:06d}".rstrip("0")
    return f"{whole}.{digits.ljust(2, '0')}"


def _checked_price(value: Any) -> int:
    """Return a price in millionths of the currency, without a rounding error."""
    try:
        price = Decimal(str(value)) if isinstance(value, int | float | str) else None
    except InvalidOperation:
        price = None
    if price is None or isinstance(value, bool) or not price.is_finite() or not 0 <= price <= MICROS:
        raise flaw(f"must not be {shown(value)}")
    micros = price * MICROS
    if micros != int(micros):
        raise flaw(f"{shown(value)} has more than 6 decimals")
    return int(micros)


_PRICE: Final = "a price per million tokens, from 0 to 1e6, with up to 6 decimals"
_Price = Annotated[int, BeforeValidator(_checked_price)]


class ModelPrice(BaseModel):
    """The price of a million tokens of a model, in millionths of the currency."""

    model_config = STRICT

    input: _Price = Field(description=_PRICE)
    output: _Price = Field(description=_PRICE)

    def micros(self, count: TokenCount) -> int:
        """Return what tokens cost, rounded up to a millionth of the currency."""
        return -(-(count.input * self.input + count.output * self.output) // MICROS)


class ModelCharge(NamedTuple):
    """Tokens of a model, and what they cost. `unpriced`: how many of them have no known price."""

    model: str
    input_tokens: int
    output_tokens: int
    micros: int
    unpriced: int


@dataclass(frozen=True, slots=True)
class TokenTotal:
    """Tokens and their price. `unpriced`: the tokens among them whose price was not known."""

    input_tokens: int = 0
    output_tokens: int = 0
    micros: int = 0
    unpriced: int = 0

    def __add__(self, other: TokenTotal) -> TokenTotal:
        return TokenTotal(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.micros + other.micros,
            self.unpriced + other.unpriced,
        )


class TokenBill(NamedTuple):
    """What tokens cost, by model, in a currency; it is empty if no model has a price."""

    currency: str
    charges: Sequence[ModelCharge]

    @property
    def unpriced(self) -> int:
        """How many tokens have no known price."""
        return sum(charge.unpriced for charge in self.charges)

    def amounts(self) -> dict[str, int]:
        """Return what is charged to budgets, by resource; money only if any model has a price."""
        read = sum(charge.input_tokens for charge in self.charges)
        written = sum(charge.output_tokens for charge in self.charges)
        amounts = {TOKENS: read + written, INPUT: read, OUTPUT: written}
        if self.currency:
            amounts[MONEY + self.currency] = sum(charge.micros for charge in self.charges)
        return amounts

    def document(self) -> dict[str, Any]:
        """Return the bill as the op log has it."""
        models = {
            charge.model: {
                INPUT: charge.input_tokens,
                OUTPUT: charge.output_tokens,
                **({"unpriced": True} if charge.unpriced else {"micros": charge.micros}),
            }
            for charge in self.charges
        }
        return {"models": models, **({"currency": self.currency} if self.currency else {})}
