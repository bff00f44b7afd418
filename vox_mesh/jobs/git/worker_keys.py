"""Keys of workers, as the mesh trusts them; each node is looked up once."""

from __future__ import annotations

from vox_mesh.model.jobs.proof import Proof
from vox_mesh.model.oplog.verification import Key, key_at
from vox_mesh.nodes.nodes import Nodes
from vox_mesh.oplog.trusted_keys import TrustedKeys


class WorkerKeys:
    """Tells whose keys count, for one export or import."""

    def __init__(self, trusted_keys: TrustedKeys, nodes: Nodes) -> None:
        self._trusted_keys = trusted_keys
        self._nodes = nodes
        self._of_node: dict[str, list[str]] = {}
        self._of_chain: dict[str, list[Key]] = {}
        self._of_mesh: frozenset[str] | None = None

    async def in_force(self, node_id: str) -> str | None:
        """Return the key with which a node signs now; `None` if the mesh knows none."""
        keys = await self._keys(node_id)
        return keys[-1] if keys else None

    async def key_at(self, chain: str, seq: int) -> str | None:
        """Return the key by which an entry of a chain must be signed."""
        if chain not in self._of_chain:
            self._of_chain[chain] = await self._trusted_keys.of_chain(chain)
        return key_at(seq, self._of_chain[chain])

    async def has_signed(self, proof: Proof) -> bool:
        """Return whether the key of a proof is one that its node has, or had before it was replaced."""
        return proof.envelope["worker_id"] in await self._keys(proof.envelope["node_id"])

    async def of_mesh(self) -> frozenset[str]:
        """Return the keys of all nodes of the mesh."""
        if self._of_mesh is None:
            nodes = await self._nodes.all()
            self._of_mesh = frozenset([key for node in nodes for key in await self._keys(node.node_id)])
        return self._of_mesh

    async def _keys(self, node_id: str) -> list[str]:
        if node_id not in self._of_node:
            keys, _ = await self._trusted_keys.in_force(node_id)
            self._of_node[node_id] = [key.public_key for key in keys[node_id] if key.public_key]
        return self._of_node[node_id]
