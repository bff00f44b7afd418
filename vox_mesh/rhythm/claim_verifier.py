"""Which status claims are genuine: signed by the node that they name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import orjson

from vox_mesh.messages.signatures import SenderVerifier
from vox_mesh.model.base.recent import Recent
from vox_mesh.model.rhythm.claim_signatures import signed_claims, split_hashes
from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.store.schema.statements import named

_MAX_KNOWN: Final = 1_024
_SIGNATURES: Final = named("task_status")["signatures"]


class SignedBatch(NamedTuple):
    """The claims that a node wrote at once."""

    batch: int
    node_id: str


_Hashes = dict[SignedBatch, frozenset[str]]


class ClaimVerifier:
    """Checks status claims. The signature of a batch is verified once."""

    def __init__(self, context: RhythmContext, verifier: SenderVerifier) -> None:
        self._context = context
        self._verifier = verifier
        self._known = Recent[SignedBatch, frozenset[str]](_MAX_KNOWN)
        """The hashes of the claims of each batch; none if its signature is not the node's."""

    async def are_genuine(
        self, claims: Sequence[tuple[SignedBatch | None, str]], *, fresh: bool = False
    ) -> list[bool]:
        """Return whether each of the claims, given by its batch and hash, was signed by its node."""
        batches = {batch for batch, _ in claims if batch is not None}
        known = {batch: self._known[batch] for batch in batches & self._known.keys()}
        if unknown := batches - known.keys():
            known |= await self._read(unknown, fresh=fresh)
        return [batch is not None and digest in known[batch] for batch, digest in claims]

    async def _read(self, batches: Iterable[SignedBatch], *, fresh: bool) -> _Hashes:
        found: _Hashes = dict.fromkeys(batches, frozenset())
        mesh = self._context.mesh
        await self._verifier.notice_new_keys()
        values = (*mesh, orjson.dumps([tuple(batch) for batch in found]).decode())
        for row in await self._context.store.read(_SIGNATURES, values, fresh=fresh):
            node_id, hashes, signature = (_text(row[name]) for name in ("node_id", "hashes", "signature"))
            batch = SignedBatch(row["batch"], node_id)
            signed = signed_claims(mesh, node_id, batch.batch, hashes)
            if batch in found and await self._verifier.has_signed(node_id, signed, signature):
                found[batch] = split_hashes(hashes)
        for batch, known in found.items():
            self._known[batch] = known
        return found


def _text(value: bytes) -> str:
    """Return the text of a column; a planted one may be no text."""
    return value.decode(errors="replace")
