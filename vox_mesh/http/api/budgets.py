"""Budgets of agents and accounts, and their spending, in beats."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from vox_mesh.http.api.operations import Asked, Operations, Seconds
from vox_mesh.http.api.pages import Page, PageAsked
from vox_mesh.model.rhythm.budgets import Budget
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.rhythm import BudgetView, SpendingView

BUDGETS: Final = Operations("budgets")

Subject = Annotated[str, Field(pattern=r"^(agent|account):\S{1,200}$", examples=["account:research"])]


class BudgetsAsked(PageAsked):
    """The subject, by default all."""

    subject: Subject | None = None


class SpendingAsked(BudgetsAsked):
    """The start of the period; by default, since the budgets count."""

    since: Seconds | None = None


class ToAllow(Asked):
    """A budget, and whose it is; null removes it. With `anew`, what was spent until now is forgotten."""

    subject: Subject
    budget: dict[str, Any] | None
    anew: bool = False


@BUDGETS.get("/v1/budgets")
async def list_budgets(mesh: MeshServices, query: BudgetsAsked) -> Page[BudgetView]:
    """List the budgets that are set."""
    found = await mesh.rhythm.budgets.show(query.subject)
    return query.page_of([BudgetView.of(each) for each in found], lambda view: view.subject)


@BUDGETS.put("/v1/budgets")
async def set_budget(mesh: MeshServices, body: ToAllow) -> BudgetView:
    """Have an agent or an account spend no more than that, or what it likes."""
    budgets = mesh.rhythm.budgets
    if body.budget is None:
        (before,) = await budgets.show(body.subject)
        await budgets.remove(body.subject)
        return BudgetView.of(before)
    return BudgetView.of(await budgets.set(body.subject, Budget.of_document(body.budget), anew=body.anew))


@BUDGETS.get("/v1/budgets/report")
async def report_spending(mesh: MeshServices, query: SpendingAsked) -> Page[SpendingView]:
    """List what agents and accounts have spent: beats, cost and resources."""
    await mesh.rhythm.look()
    since_ms = None if query.since is None else mesh.clock.now_ms - round(query.since * 1_000)
    found = await mesh.rhythm.budgets.report(query.subject, since_ms=since_ms)
    return query.page_of([SpendingView.of(each) for each in found], lambda view: view.subject)
