"""Planted keys: rows that would keep a node from writing with its own key, though no one vouches for them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import orjson

from vox_mesh.errors import Refused
from vox_mesh.nodes.identity import Identity
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Script, Statement

_log = logging.getLogger(__name__)

_SQL: Final = named("oplog")
_CHANGED: Final = "keys_changed"

Apply = Callable[[Script], Awaitable[object]]
"""Applies a script."""


async def drop_planted_keys(trusted_keys: TrustedKeys, identity: Identity, apply: Apply) -> bool:
    """Delete the recorded keys of a node that neither opened its chains nor were accepted by the owner.

    It does so only if the node's own key is the one in force. Return whether it is.
    """
    keys, mark = await trusted_keys.in_force(identity.node_id)
    if any(not each or each[-1].public_key != identity.key.public for each in keys.values()):
        return False
    mesh = trusted_keys.mesh_id
    drops = [
        Statement(
            _SQL["drop_planted_keys"],
            (*mesh, chain, orjson.dumps([[key.from_seq, key.public_key] for key in known]).decode()),
        )
        for chain, known in keys.items()
    ]
    guard = Statement(_SQL["refuse_unless_rekeyed"], (*mesh, mark), refusal=_CHANGED)
    forget = Statement(_SQL["forget_own_request"], (*mesh, identity.node_id, identity.key.public))
    try:
        await apply(Script(guard, *drops, forget, repeatable=True))
    except Refused as refused:
        if refused.reason != _CHANGED:
            raise
        return False
    _log.error("planted keys of this node deleted: node_id=%s", identity.node_id)
    return True
