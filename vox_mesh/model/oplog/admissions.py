"""Admissions: the nodes whose chains count in a strict mesh, by the owner's word.

In a trusting mesh, the key that opened a chain counts. In a strict one, it counts only if the owner has
admitted the node with that key, or has accepted it. Of other chains, the entries that they had when the mesh
became strict count: the op names the ends of these chains.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from vox_mesh.model.base.canonical import canonical, parse
from vox_mesh.model.base.keys import checked_public_key
from vox_mesh.model.oplog.chain import LogEntry, node_of
from vox_mesh.model.oplog.key_changes import ChainEnd
from vox_mesh.model.oplog.verification import ADMIT_NODE, READ_ERRORS, STRICT, Key

_NO_KEY: Final = ""
"""In place of a key: no signature fits it."""


class AdmittedNode(NamedTuple):
    """A node that the owner has admitted, with its key."""

    node_id: str
    public_key: str

    @property
    def payload(self) -> str:
        """Return the payload of the op."""
        return canonical({"node": self.node_id, "key": self.public_key})


def strict_payload(ends: Mapping[str, ChainEnd]) -> str:
    """Return the payload of the op that makes a mesh strict; `ends`: of the chains that end with it."""
    return canonical({"strict": True, "ends": {chain: [*end] for chain, end in ends.items()}})


class NodeAdmissions:
    """Take in the owner's ops about nodes and the mode, by time."""

    def __init__(self, owners: Iterable[str] = ()) -> None:
        """`owners`: the nodes that are or were the owner's, which need no admission."""
        self._owners = frozenset(owners)
        self._admitted: dict[str, set[str]] = {}
        self._ends: dict[str, ChainEnd] = {}
        self.is_strict = False

    def hear(self, entry: LogEntry) -> None:
        """Take in an op that the owner has signed; others than those about nodes and the mode are ignored."""
        if entry.accepted != 1:
            return
        try:
            read: Any = parse(entry.payload)
            if entry.kind == ADMIT_NODE:
                self.accept(str(read["node"]), [checked_public_key(read["key"])])
            elif entry.kind == STRICT:
                ends = read.get("ends", {}).items()
                ends = {chain: ChainEnd(int(seq), digest) for chain, (seq, digest) in ends}
                self.is_strict, self._ends = read["strict"] is True, ends
        except READ_ERRORS:
            return

    def accept(self, node_id: str, keys: Iterable[str]) -> None:
        """Let these keys of a node count: the owner has signed for them."""
        self._admitted.setdefault(node_id, set()).update(keys)

    def has_admitted(self, node_id: str, keys: Collection[str]) -> bool:
        """Return whether a node with one of these keys was admitted, in any mode; the owner's always are."""
        return node_id in self._owners or self.has_admitted_by_op(node_id, keys)

    def has_admitted_by_op(self, node_id: str, keys: Collection[str]) -> bool:
        """Return whether an op of the owner admits a node with one of these keys, or accepts the key."""
        return not self._admitted.get(node_id, set()).isdisjoint(keys)

    def counts(self, node_id: str, keys: Collection[str]) -> bool:
        """Return whether what a node signs now with one of these keys counts."""
        return not self.is_strict or self.has_admitted(node_id, keys)

    def limit(self, chain: str, keys: list[Key]) -> list[Key]:
        """Return the keys of a chain, and where they end if the owner has admitted none of them."""
        if self.counts(node_of(chain), {key.public_key for key in keys}):
            return keys
        end = self.end_of(chain)
        if not end:
            return []
        return [*(key for key in keys if key.from_seq <= end), Key(chain, end + 1, _NO_KEY)]

    def end_of(self, chain: str) -> int:
        """Return the number of the last entry that counts in a chain of a node that is not admitted."""
        return self._ends[chain].seq if chain in self._ends else 0

    @property
    def ends(self) -> Mapping[str, ChainEnd]:
        """Return where the chains ended that were not admitted when the mesh became strict."""
        return self._ends
