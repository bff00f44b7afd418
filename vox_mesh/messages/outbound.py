"""Messages that wait to be forwarded to other scopes: how many, and whether one more may be sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vox_mesh.errors import BadValue, DatabaseUnavailable, Overloaded
from vox_mesh.model.messages.scope_address import ScopeAddress
from vox_mesh.store.schema.statements import named
from vox_mesh.store.store import Store

SQL: Final = named("scopes")
"""The statements about messages between scopes."""

MAX_OPEN: Final = 10_000
"""How many messages may wait for one scope; and in an inbox, for one more from another scope to be stored."""


async def count_outbound(store: Store, scope: str | None) -> int:
    """Return how many messages wait to be forwarded to a scope, or to all; no more than may be sent."""
    waiting: int = (await store.read(SQL["count_outbound"], (*store.mesh_id, scope, MAX_OPEN))).value
    return waiting


def _check_sender(known: Sequence[str], sender: str) -> None:
    """Raise an error if a sender's name is that of an agent of a scope: it would pass for that agent."""
    address = ScopeAddress.parse(sender)
    if address is not None and address.scope in known:
        raise BadValue(
            f"sender {sender!r} must not end in @{address.scope}, the name of a scope",
            hint=f"send as {address.inbox!r}: a recipient in another scope sees the scope of the sender",
        )


async def check_outbound(store: Store, known: Sequence[str], sender: str, to: str) -> None:
    """Raise an error if a message to another scope can't be sent: it is unknown, or too many wait for it.

    The number is not exact: several senders may check it at the same time. No local sender may have the
    name of an agent of a scope.
    """
    _check_sender(known, sender)
    address = ScopeAddress.parse(to)
    if address is None:
        return
    if address.scope == store.mesh_id[0]:
        raise BadValue(f"recipient {to!r} is in this scope", hint=f"send it to {address.inbox!r}")
    if address.scope not in known:
        raise BadValue(
            f"scope {address.scope!r} of recipient {to!r} not found",
            hint=f"choose one of: {', '.join(known)}",
        )
    try:
        waiting = await count_outbound(store, address.scope)
    except DatabaseUnavailable:  # it is spooled, as any message
        return
    if waiting >= MAX_OPEN:
        raise Overloaded(
            f"{MAX_OPEN} messages wait to be forwarded to scope {address.scope}",
            hint="is a node up that serves both scopes? see `vox-mesh scopes`",
        )
