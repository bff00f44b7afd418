"""Reservations: what jobs may cost of the budgets of grants until they have ended, and then what they did.

A reservation is settled in the transaction that ends its job. If an attempt was taken from its worker, its
cost is not known yet: then it is settled in the transaction that records the cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import orjson

from vox_mesh.errors import OverGrantBudget
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Script, Statement
from vox_mesh.store.store import Store

if TYPE_CHECKING:
    from vox_mesh.model.grants.limits import GrantBudget

_SQL: Final = named("grant_reservations")

_MeshId = tuple[str, str]


def reserve(
    mesh: _MeshId, op_id: str, budgets: Sequence[GrantBudget], costs: Mapping[str, int]
) -> tuple[Statement, ...]:
    """Return what reserves the costs of the jobs that an op schedules, and refuses them if that is too much.

    They must follow the statement that schedules the jobs. `costs` are in thousandths of beats.
    """
    values = (*mesh, op_id, _json([[tuple(each) for each in budgets], costs]))
    return (
        Statement(_SQL["reserve"], values),
        Statement(_SQL["count"], values),
        Statement(_SQL["refuse_over_budget"], values, refusal=OverGrantBudget.code),
    )


def settle(mesh: _MeshId, job_ids: Iterable[str]) -> tuple[Statement, ...]:
    """Return what settles the reservations of these jobs, if they have ended, and of ones that they failed.

    They must follow all that the script records about the jobs: their ends, and what their attempts cost.
    """
    values = (*mesh, _json(list(job_ids)))
    return Statement(_SQL["settle"], values), Statement(_SQL["remove_settled"], values)


def settle_all(mesh: _MeshId) -> tuple[Statement, ...]:
    """Return what settles the reservations of all jobs that have ended."""
    return Statement(_SQL["settle_all"], mesh), Statement(_SQL["remove_all_settled"], mesh)


async def settle_overlooked(store: Store) -> None:
    """Settle what is left of jobs that have ended by the hand of an earlier version, or without an op."""
    if (await store.read(_SQL["is_any_due"], store.mesh_id)).value:
        await store.write(Script(*settle_all(store.mesh_id)))


async def read_reserved(store: Store, grant_ids: Sequence[str]) -> dict[str, int]:
    """Return what jobs by grants in force did cost, or may cost, in thousandths of beats."""
    values = (*store.mesh_id, _json(grant_ids))
    return {
        row["grant_id"]: row["reserved_mbu"] for row in await store.read(_SQL["reserved"], values, fresh=True)
    }


def end_reservations(mesh: _MeshId) -> Statement:
    """Return the statement that removes the reservations of grants which are not in force any more."""
    return Statement(_SQL["end"], mesh)


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
