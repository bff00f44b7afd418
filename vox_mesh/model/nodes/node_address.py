"""The address of a node's service, as the node signs it."""

from __future__ import annotations

from typing import Final, NamedTuple

import orjson

_SIGNED_KIND: Final = "vox-mesh node address"


class NodeAddress(NamedTuple):
    """Where a node's service is, and which token it knows. A loopback address is of the machine named."""

    node_id: str
    url: str
    token_id: str
    machine_id: str

    def signed_text(self, scope_id: str, repository_id: str) -> bytes:
        """Return the signed text: a kind, the mesh, and all fields."""
        return orjson.dumps([_SIGNED_KIND, scope_id, repository_id, *self])


class SignedAddress(NamedTuple):
    """An address with its signature, which is not verified by that."""

    address: NodeAddress
    signature: str
