"""A permit: an agent that acts by a grant or without one, and the guards that check it at the commit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from vox_mesh.errors import NotGranted
from vox_mesh.model.base.reserved import MESH_AGENT
from vox_mesh.store.schema.statements import named, part
from vox_mesh.store.script import Answer, Op, Script, Statement

if TYPE_CHECKING:  # most meshes have no grants
    from vox_mesh.model.grants.limits import GrantBudget, Use
    from vox_mesh.oplog.grants.usage import GrantLimits

MESH_GRANT: Final = ""
"""In place of the id of a grant where none is needed: the mesh itself acts, or the grant was checked."""

_SQL: Final = named("grants")
_BOUND: Final = re.compile(r"(\?\d+|value ->> '\w+') AS (\w+)")
_BOUND_NAME: Final = re.compile(r"\b(scope|repository|agent|node)\b")


class ApprovalStep(Protocol):
    """What an approval adds to an op: it is asked for, or applied exactly as it was asked."""

    @property
    def guards(self) -> tuple[Statement, ...]:
        """Return the first statements of its script, after the guard of the grant."""

    @property
    def key(self) -> str | None:
        """Return the id of its op, if that is given."""

    def bind(self, op: Op) -> Op:
        """Return the op as the approval has it."""


class Permit(NamedTuple):
    """An agent that acts through a node, by a grant or without one; without a `mesh`, nothing is checked.

    `approval`: the grant allows it after an approval only.
    """

    agent: str
    node_id: str
    grant_id: str | None
    mesh: tuple[str, str] | None
    approval: ApprovalStep | None = None
    limits: GrantLimits | None = None
    """The rates, limits and budgets of the grant that concern the acts, if there are any."""
    capacity: int | None = None
    """How many jobs the agent wants to hold at most, if it takes jobs and has said so."""

    @property
    def guards(self) -> tuple[Statement, ...]:
        """Return the first statements of each script that is written by it."""
        own = () if self.mesh is None else (grant_guard(self.mesh, *self[:3]), *self.usage)
        return own if self.approval is None else (*own, *self.approval.guards)

    @property
    def usage(self) -> tuple[Statement, ...]:
        """Return the statements that count what is used of the limits, and refuse what exceeds them."""
        return () if self.limits is None else self.limits.statements

    @property
    def budgets(self) -> Sequence[GrantBudget]:
        """Return the budgets of the grant, and of the ones it was delegated from, that the acts use of."""
        return () if self.limits is None else self.limits.budgets

    def using(self, uses: Callable[[], Iterable[Use]]) -> Permit:
        """Count these uses, which are worked out only if there are limits. By default, each act is one."""
        if self.limits is not None:
            self.limits.count(uses())
        return self

    @property
    def key(self) -> str | None:
        """Return the key of the script that is written by it, if that is given."""
        return None if self.approval is None else self.approval.key

    def script(
        self,
        *statements: Statement,
        op: Op,
        answer: Answer | None = None,
        key: str | None = None,
        appendable: bool = False,
    ) -> Script:
        """Return a script that is written by this permit, and whose op names it.

        Its key is that of the permit, if it has one.
        """
        return Script(
            *self.guards,
            *statements,
            answer=answer,
            key=self.key or key,
            appendable=appendable and self.approval is None,  # an approval is in time only if it is done now
            op=self.named_in(op),
        )

    def named_in(self, op: Op) -> Op:
        """Return the op with the agent that acts, and its grant."""
        named = op._replace(agent=self.agent, grant=self.grant_id)
        return named if self.approval is None else self.approval.bind(named)


MESH_PERMIT: Final = Permit(MESH_AGENT, "", None, None)
"""The permit of the mesh itself, which needs no grant."""


def grant_guard(mesh: tuple[str, str], agent: str, node_id: str, grant_id: str | None) -> Statement:
    """Return a guard that raises `NotGranted` unless an agent may act, by a grant or without one."""
    sql = sql_for_agent(_SQL["refuse_without_grant"], agent, node_id, grant_id)
    return Statement(sql, (*mesh, grant_id, node_id, agent), refusal=NotGranted.code)


def sql_for_agent(sql: str, agent: object, node_id: object, grant_id: object) -> str:
    """Return the form of a statement that checks grants for an agent that acts through a node by a grant.

    It does the same, and a server, which compiles each statement again, does that in half the time. A form
    may have no use for the grant or the node: neither may be the last value of the statement.
    """
    if grant_id is not None:
        return sql
    if agent == node_id:
        return _form(sql, "NODE_WITHOUT_GRANT")
    if isinstance(agent, str) and not agent.startswith("person:"):
        return _form(sql, "AGENT_WITHOUT_GRANT")
    return _form(sql, "WITHOUT_GRANT")


def sql_without_grants(sql: str) -> str:
    """Return the form of a statement that checks grants for each of several rows, none of which names one."""
    return _form(sql, "ALL_WITHOUT_GRANT")


@cache
def _form(sql: str, name: str) -> str:
    """Put a part of `grants.sql` in place of `GRANTED`, about the expressions that are bound there."""
    granted = f"(SELECT {part('grants', 'GRANTED')} FROM ("
    before, found, rest = sql.partition(granted)
    if not found:
        return sql
    bound, _, after = rest.partition(" AS by_grant))")
    values = {name: value for value, name in _BOUND.findall(bound)}
    condition = _BOUND_NAME.sub(lambda found: values[found[0]], part("grants", name))
    return f"{before}{condition}{after}"
