"""Views of tokens of language models, and of what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vox_mesh.model.locks.records import iso_of
from vox_mesh.model.rhythm.tokens import MONEY, TokenTotal, money_text
from vox_mesh.rhythm.token_ledger import LimitStanding, ModelSpend, SpendRow


@dataclass(frozen=True)
class TokensView:
    """Tokens and their price. `unpriced_tokens`: those among them whose price was not known."""

    currency: str | None
    input_tokens: int
    output_tokens: int
    money: str | None
    unpriced_tokens: int

    @classmethod
    def of(cls, currency: str, total: TokenTotal) -> TokensView:
        """Return the view of a total in a currency; without one, no price was known."""
        money = money_text(total.micros) if currency else None
        return cls(currency or None, total.input_tokens, total.output_tokens, money, total.unpriced)


@dataclass(frozen=True)
class LimitView:
    """A limit on tokens or money, what was spent of it, and what running attempts have reserved."""

    resource: str
    most: str
    spent: str
    reserved: str
    currency: str | None

    @classmethod
    def of(cls, limit: LimitStanding) -> LimitView:
        """Return the view of a limit. Money is shown as a decimal."""
        name, _, currency = limit.resource.partition(":")
        shown = money_text if limit.resource.startswith(MONEY) else str
        most, spent, reserved = (shown(each) for each in (limit.most, limit.spent, limit.reserved))
        return cls(name, most, spent, reserved, currency or None)


@dataclass(frozen=True)
class SpendRowView:
    """The tokens of a model that an agent has used in a day, for an account and a kind of job."""

    day: str
    agent: str
    account: str
    kind: str
    model: str
    tokens: TokensView

    @classmethod
    def of(cls, row: SpendRow) -> SpendRowView:
        """Return the view of a row."""
        day = iso_of(row.day_ms)[:10]
        tokens = TokensView.of(row.currency, row.total)
        return cls(day, row.agent_id, row.account, row.kind, row.model, tokens)


@dataclass(frozen=True)
class ModelSpendView:
    """The tokens of a model that an agent has used today, and in this month."""

    model: str
    today: TokensView
    month: TokensView

    @classmethod
    def of(cls, spend: ModelSpend) -> ModelSpendView:
        """Return the view of a model."""
        today, month = (TokensView.of(spend.currency, each) for each in (spend.today, spend.month))
        return cls(spend.model, today, month)


def spend_text(totals: Mapping[str, TokenTotal]) -> str:
    """Return tokens and their price in a few words, empty if there are none."""
    return ", ".join(tokens_text(TokensView.of(name, totals[name])) for name in sorted(totals))


def tokens_text(view: TokensView) -> str:
    """Return tokens and their price in a few words."""
    words = f"{view.input_tokens} in/{view.output_tokens} out"
    if view.money is not None:
        words += f" {view.money} {view.currency}"
    return words + (f" ({view.unpriced_tokens} unpriced)" if view.unpriced_tokens else "")
