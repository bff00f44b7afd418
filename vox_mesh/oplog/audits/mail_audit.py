"""Mail audit: find the messages that were signed with a key after it had been replaced."""

from __future__ import annotations

from typing import Final

from vox_mesh.model.messages.records import Message, signature_of
from vox_mesh.model.oplog.verification import ChainReport
from vox_mesh.oplog.pages import Pace
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.store.schema.statements import named
from vox_mesh.store.store import Store

_SQL: Final = named("messages")
_PAGE: Final = 16  # a message may be large


class MailAudit:
    """Check the messages of nodes whose keys were replaced: waiting ones and dead letters."""

    def __init__(self, store: Store, trusted_keys: TrustedKeys) -> None:
        self._store = store
        self._trusted_keys = trusted_keys

    async def reports(self) -> list[ChainReport]:
        """Return a report, without a chain, on each node for which a replaced key has signed messages."""
        reports = []
        for node_id in await self._trusted_keys.rekeyed_nodes():
            forged = await self._forged(node_id)
            if forged:
                problem = (
                    f"messages of {node_id} signed with a replaced key: {len(forged)}, first {forged[0]}"
                )
                reports.append(ChainReport("", 0, 0, 0, problem))
        return reports

    async def _forged(self, node_id: str) -> list[str]:
        """Return the ids of the messages that a replaced key signed, and that did not wait at that time."""
        keys = await self._trusted_keys.of_node(node_id, fresh=True)
        mesh, after, pace = self._store.mesh_id, -1, Pace()
        forged: list[str] = []
        while rows := await self._store.read(
            _SQL["deliverable_of"], (*mesh, node_id, after, _PAGE), fresh=True
        ):
            for message in (Message.read(row[0]) for row in rows):
                after = message.position
                signature, text = signature_of(message, *mesh)
                signer = keys.signer(text, signature)
                if signer is not None and not keys.covers(signer, message.hlc, message.signature):
                    forged.append(message.message_uuid)
                await pace.keep(message.payload)
        return forged
