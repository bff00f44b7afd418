"""Verification: check a log chain by chain, and report whether and where each was changed.

Memory does not grow with the log, only with the number of chains and of anchored heads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import is_canonical, parse
from vox_mesh.model.base.keys import is_signed
from vox_mesh.model.oplog.chain import (
    ANCHOR,
    LogEntry,
    node_of,
    signed_text,
)
from vox_mesh.model.oplog.deletion import DELETE, DeletedEntries, Deletion, archived_ends
from vox_mesh.model.oplog.key_changes import KeyChange
from vox_mesh.model.oplog.segment import ARCHIVE, Segment, voided_op

INITIALISE: Final = "InitialiseMesh"
DESIGNATE: Final = "DesignateCoordinator"
ROUTE: Final = "RouteKind"
REKEY: Final = "RekeyNode"
TRANSFER: Final = "TransferOwnership"
"""The op by which the ownership passes on, or by which the owner replaces the recovery key."""

ADMIT_NODE: Final = "AdmitNode"
ADMIT: Final = "AdmitAgent"
GRANT: Final = "Grant"
DELEGATE: Final = "Delegate"
REVOKE: Final = "Revoke"
STRICT: Final = "SetStrict"

REQUEST: Final = "RequestApproval"
"""The op by which an agent asks for an approval. Its id is that of the approval."""

APPROVE: Final = "Approve"
DENY: Final = "Deny"

ISSUE_TOKEN: Final = "IssueAgentToken"  # noqa: S105 - a kind of op
REVOKE_TOKEN: Final = "RevokeAgentToken"  # noqa: S105 - a kind of op

OWNER_GRANTS: Final = (ADMIT, GRANT, REVOKE, STRICT, ISSUE_TOKEN, REVOKE_TOKEN)
"""Ops of the owner about agents and their grants."""

TRUST_SCOPE: Final = "TrustScope"
"""The op by which the owner trusts another scope, known by its owner's key, to send messages here."""

OWNER_ONLY: Final = frozenset({DESIGNATE, ROUTE, REKEY, ADMIT_NODE, TRUST_SCOPE, DELETE, *OWNER_GRANTS})
"""Kinds of op that only the owner of the mesh may author; each is signed individually."""

WITNESSES: Final = (ANCHOR, ARCHIVE, REKEY, DELETE)
"""Kinds of op that state something about other chains."""

READ_ERRORS: Final = (BadValue, TypeError, ValueError, AttributeError, KeyError)
"""Raised by reading an entry with invalid contents."""

_DISPUTED: Final = ""  # in place of a hash: anchors that disagree can't both be true


class Key(NamedTuple):
    """The key of a chain, in force from an entry on."""

    node_id: str
    from_seq: int
    public_key: str


class RecordedHead(NamedTuple):
    """An entry that a chain had, as recorded outside of the log, with the source that says so."""

    chain: str
    seq: int
    hash: str
    source: str


def key_at(seq: int, keys: Sequence[Key]) -> str | None:
    """Return the key in force at an entry, from the ordered keys of its chain."""
    return next((key.public_key for key in reversed(keys) if key.from_seq <= seq), None)


def _number(seq: object) -> int:
    """Return a position to sort by: a hostile row may hold something else."""
    return seq if isinstance(seq, int) else -1


def is_whole(entry: LogEntry) -> bool:
    """Return whether the entry has its hash, and its JSON parts are canonical."""
    return entry.true_hash == entry.hash and is_canonical(entry.payload) and is_canonical(entry.causal_deps)


class ChainReport(NamedTuple):
    """The result for one chain. `problem` is the first problem found, `seq` its position."""

    node_id: str
    entries: int
    sealed_to: int
    anchored_to: int
    problem: str | None = None
    seq: int | None = None
    op_id: str | None = None


class Owners(Protocol):
    """The owners of the mesh, one after another."""

    @property
    def key(self) -> str | None:
        """Return the key of the present owner."""

    @property
    def initial_key(self) -> str | None:
        """Return the key of the first owner."""

    def signer(self, entry: LogEntry) -> str | None:
        """Return the key of the owner that signed this very entry in its tenure, or `None`."""

    def is_step(self, entry: LogEntry) -> bool:
        """Return whether the ownership passed on by this entry."""


class SoleOwner:
    """An owner that is known by its key alone, and has no successor."""

    def __init__(self, key: str | None, scope_id: str) -> None:
        self.key = self.initial_key = key
        self._scope_id = scope_id

    def signer(self, entry: LogEntry) -> str | None:
        """Return the key of the owner if it signed this very entry."""
        if self.key is None or entry.signature is None:
            return None
        try:
            text = signed_text(entry.hash, self._scope_id)
            is_own = is_whole(entry) and is_signed(text, entry.signature, self.key)
        except READ_ERRORS:
            return None
        return self.key if is_own else None

    def is_step(self, _: LogEntry) -> bool:
        """Return `False`: there are none."""
        return False


class ChainWitness:
    """What ops state about other chains: their heads, and the keys that the owner accepted."""

    def __init__(
        self,
        owner: Owners | str | None,
        keys: Iterable[Key],
        scope_id: str = "",
        recorded_owner_key: str | None = None,
    ) -> None:
        """`owner`: all owners, or the key of the only one.

        `recorded_owner_key`: that of the table `mesh_owner`; without one, no table is checked.
        """
        self.owners = SoleOwner(owner, scope_id) if owner is None or isinstance(owner, str) else owner
        self.recorded_owner_key = self.owners.key if recorded_owner_key is None else recorded_owner_key
        self.scope_id = scope_id
        self.keys: dict[str, list[Key]] = defaultdict(list)
        for key in keys:
            self.keys[key.node_id].append(key)
        self._heads: dict[str, dict[int, tuple[str, str]]] = defaultdict(dict)
        self._accepted: dict[tuple[str, int], tuple[str, Key]] = {}
        """By chain and position, the latest key that the owner accepted by a signed op, with its time."""
        self._changes: dict[str, list[KeyChange]] = defaultdict(list)
        self._segments: list[tuple[LogEntry, Segment]] = []
        self._unheard: set[str] = set()
        """Ops about segments whose heads are not taken in yet: not all of them record the next one."""

        self._void: set[str] = set()
        self._deletions: list[Deletion] = []
        self._deleted: DeletedEntries | None = None

    def hear(self, entry: LogEntry) -> None:
        """Take in an op of one of the kinds `WITNESSES`."""
        if entry.accepted != 1:
            return
        try:
            if not is_whole(entry):
                return  # it was changed, which the check of its own chain reports
            if entry.kind == ANCHOR:
                payload: Any = parse(entry.payload)
                self._hear_heads(payload["heads"], f"anchor {entry.op_id} of {entry.node_id}")
            elif entry.kind in (ARCHIVE, DELETE):
                self._hear_of_archive(entry)
                self._unheard.add(entry.op_id)
            elif entry.kind == REKEY and self.is_of_owner(entry):
                self._hear_change(KeyChange.read(entry))
        except READ_ERRORS:
            return

    def hear_earlier(self, entry: LogEntry) -> None:
        """Take in an op about the archive from before a checkpoint: its heads were compared before."""
        with suppress(*READ_ERRORS):
            if entry.accepted == 1 and is_whole(entry):
                self._hear_of_archive(entry)

    @property
    def heads(self) -> Mapping[str, Mapping[int, tuple[str, str]]]:
        """Return by chain and number the hash of an entry as it was recorded, and what recorded it."""
        if self._unheard:
            for entry, segment in self._recorded():
                if entry.op_id in self._unheard:
                    self._hear_heads(segment.heads, f"segment {entry.op_id} of {entry.node_id}")
            self._unheard.clear()
        return self._heads

    def _hear_heads(self, heads: Mapping[str, tuple[int, str]], what: str) -> None:
        for node_id, (seq, digest) in heads.items():
            if type(seq) is int:
                self._record(node_id, seq, digest, what)

    def _recorded(self) -> list[tuple[LogEntry, Segment]]:
        """Return the segments that follow each other. What other ops state of segments does not count."""
        found: list[tuple[LogEntry, Segment]] = []
        for entry, segment in sorted(self._segments, key=lambda each: each[0].id):
            is_void = entry.op_id in self._void
            if not is_void and segment.is_next(entry, found[-1][1] if found else None):
                found.append((entry, segment))
        return found

    def _hear_of_archive(self, entry: LogEntry) -> None:
        self._deleted = None
        if entry.kind == ARCHIVE and (void := voided_op(entry)) is not None:
            if self.is_of_owner(entry):
                self._void.add(void)
        elif entry.kind == ARCHIVE:
            self._segments.append((entry, Segment.read(entry)))
        elif self.is_of_owner(entry):
            self._deletions.append(Deletion.read(entry))

    @property
    def deleted(self) -> DeletedEntries:
        """Return the entries that the owner let be deleted from the database, and that are archived."""
        if self._deleted is None:
            segments = [segment for _, segment in self._recorded()]
            counted = [each for each in self._deletions if each.is_archived_in(segments)]
            last = max((each.segment for each in counted), default=0)
            self._deleted = DeletedEntries(counted, archived_ends(segments, last))
        return self._deleted

    def _hear_change(self, change: KeyChange) -> None:
        for chain, seq in change.since.items():
            latest = change.hlc, Key(chain, seq, change.public_key)
            self._accepted[chain, seq] = max(self._accepted.get((chain, seq), latest), latest)
            if seq > 1 and chain in change.ends:
                source = f"op {change.op_id}, which replaced its key,"
                self._record(chain, seq - 1, change.ends[chain], source)
        self._changes[change.node_id].append(change)

    def hear_head(self, head: RecordedHead) -> None:
        """Take in a head that was recorded outside of the log."""
        self._record(*head)

    def _record(self, node_id: str, seq: int, digest: str, anchor: str) -> None:
        known, earlier = self._heads[node_id].setdefault(seq, (digest, anchor))
        if known not in (digest, _DISPUTED):  # otherwise a rewritten chain could be anchored again
            self._heads[node_id][seq] = (_DISPUTED, f"{earlier} or {anchor}")

    def is_of_owner(self, entry: LogEntry) -> bool:
        """Return whether the owner of that time signed this very entry."""
        return self.owners.signer(entry) is not None

    @property
    def accepted_keys(self) -> set[Key]:
        """Return the keys that the owner accepted by a signed op."""
        return {key for _, key in self._accepted.values()}

    def changes_of(self, node_id: str) -> list[KeyChange]:
        """Return the key changes of a node, in their order."""
        return sorted(self._changes.get(node_id, ()), key=lambda change: change.hlc)

    @property
    def rekeyed_nodes(self) -> list[str]:
        """Return the nodes whose keys the owner replaced."""
        return sorted(self._changes)

    def keys_in_force(self, chain: str) -> list[Key]:
        """Return the keys of a chain, in order: the recorded ones, unless the owner accepted another."""
        recorded = {key.from_seq: key for key in self.keys.get(chain, ())}
        recorded |= {seq: key for (name, seq), (_, key) in self._accepted.items() if name == chain}
        return [recorded[seq] for seq in sorted(recorded, key=_number)]

    def is_of_replaced_key(self, entry: LogEntry) -> bool:
        """Return whether an entry was signed with a key that its node had before the one in force there."""
        node = entry.author
        if node not in self._changes:
            return False
        text = signed_text(entry.hash, self.scope_id)
        later = {key.public_key for key in self.keys_in_force(entry.node_id) if key.from_seq > entry.seq}
        keys = self._keys_of_node(node) - later
        return any(is_signed(text, entry.signature or "", key) for key in keys)

    def _keys_of_node(self, node_id: str) -> set[str]:
        """Return the key that opened the chain of a node, and all keys that replaced it."""
        opening = key_at(1, self.keys.get(node_id, ()))
        replacing = {change.public_key for change in self._changes.get(node_id, ())}
        return replacing if opening is None else {opening, *replacing}

    def find_unaccepted_key(self, node_id: str) -> Key | None:
        """Return a later key of the chain that the owner never accepted, or `None`."""
        later = (key for key in self.keys.get(node_id, ()) if key.from_seq > 1)
        return next((key for key in later if key not in self.accepted_keys), None)

    def find_planted_key(self, node_id: str) -> Key | None:
        """Return a key, in force before the first entry, that is not the one in force there; or `None`.

        Only a key that the owner accepted for the first entry may have replaced another.
        """
        keys = self.keys.get(node_id, ())
        opening = key_at(1, self.keys_in_force(node_id))
        if any(key.from_seq == 1 and key in self.accepted_keys for key in keys):
            return None
        early = (key for key in keys if key.from_seq <= 1)
        return next((key for key in early if key.public_key != opening), None)

    def find_foreign_key(self, node_id: str) -> Key | None:
        """Return a key of the chain of a node's commands that is none of the node's own; or `None`."""
        node = node_of(node_id)
        if node == node_id or key_at(1, self.keys.get(node, ())) is None:
            return None
        own = self._keys_of_node(node)
        return next((key for key in self.keys.get(node_id, ()) if key.public_key not in own), None)

    def may_be_empty(self, node_id: str) -> bool:
        """Return whether the chain's keys are known from other sources than its entries."""
        keys = self.keys.get(node_id, ())
        return all(key.from_seq == 0 or key in self.accepted_keys for key in keys)
