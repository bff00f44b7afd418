"""Verification: check a log chain by chain, and report whether and where each was changed.

Memory does not grow with the log, only with the number of chains and of anchored heads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import is_canonical, parse
from vox_mesh.model.base.hlc import clock_part
from vox_mesh.model.base.keys import is_signed
from vox_mesh.model.base.ulid import is_ulid
from vox_mesh.model.oplog.chain import (
    ANCHOR,
    NO_HASH,
    SEAL,
    LogEntry,
    Sealing,
    node_of,
    signed_text,
)
from vox_mesh.model.oplog.key_changes import KeyChange

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

OWNER_ONLY: Final = frozenset({DESIGNATE, ROUTE, REKEY, ADMIT_NODE, *OWNER_GRANTS})
"""Kinds of op that only the owner of the mesh may author; each is signed individually."""

WITNESSES: Final = (ANCHOR, REKEY)
"""Kinds of op that state something about other chains."""

READ_ERRORS: Final = (BadValue, TypeError, ValueError, AttributeError, KeyError)
"""Raised by reading an entry with invalid contents."""

_SPECIAL: Final = frozenset({INITIALISE, TRANSFER, SEAL})
_OPTIONAL_TEXT: Final = (str, type(None))
_REPLACED: Final = "it was signed with a replaced key of its node"
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
        self.heads: dict[str, dict[int, tuple[str, str]]] = defaultdict(dict)
        self._accepted: dict[tuple[str, int], tuple[str, Key]] = {}
        """By chain and position, the latest key that the owner accepted by a signed op, with its time."""
        self._changes: dict[str, list[KeyChange]] = defaultdict(list)

    def hear(self, entry: LogEntry) -> None:
        """Take in an op of one of the kinds `WITNESSES`."""
        if entry.accepted != 1:
            return
        try:
            if not is_whole(entry):
                return  # it was changed, which the check of its own chain reports
            payload: Any = parse(entry.payload)
            if entry.kind == ANCHOR:
                for node_id, (seq, digest) in payload["heads"].items():
                    if type(seq) is int:
                        self._record(node_id, seq, digest, f"anchor {entry.op_id} of {entry.node_id}")
            elif self.is_of_owner(entry):
                self._hear_change(KeyChange.read(entry))
        except READ_ERRORS:
            return

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
        known, earlier = self.heads[node_id].setdefault(seq, (digest, anchor))
        if known not in (digest, _DISPUTED):  # otherwise a rewritten chain could be anchored again
            self.heads[node_id][seq] = (_DISPUTED, f"{earlier} or {anchor}")

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


class _ChainCheck:
    """Check the entries of one chain, in order, up to the first invalid one."""

    def __init__(self, node_id: str, witness: ChainWitness) -> None:
        self.node_id = node_id
        self._witness = witness
        self._keys: Sequence[Key] = witness.keys_in_force(node_id)
        self._first_of_keys = {key.from_seq for key in self._keys}
        self._heads: Mapping[int, tuple[str, str]] = witness.heads.get(node_id, {})
        self._sealing = Sealing()
        self._last: LogEntry | None = None
        self._time = ""
        self.entries = self.sealed_to = self.anchored_to = 0
        self.fault: tuple[str, int | None, str | None] | None = None

    def check(self, entry: LogEntry) -> None:
        """Check the next entry."""
        self.entries += 1
        if self.fault is not None:
            return
        try:
            problem = self._problem(entry)
        except READ_ERRORS as error:
            problem = f"it holds something that no entry can hold: {error}"
        if problem is not None:
            self.fault = (problem, entry.seq, entry.op_id)
        self._last = entry

    def _problem(self, entry: LogEntry) -> str | None:
        last = self._last
        expected, prev = (1, NO_HASH) if last is None else (last.seq + 1, last.hash)
        if entry.seq != expected:
            return f"entry {expected} is missing" if entry.seq > expected else "its number comes twice"
        if entry.prev != prev:
            return "it is not linked to the entry before it"
        if entry.true_hash != entry.hash:
            return "its contents do not have its hash"
        problem = self._bad_form(entry) or self._bad_verdict(entry) or self._bad_signature(entry)
        if problem is None and entry.kind in _SPECIAL:
            problem = self._bad_owner(entry) or self._bad_seal(entry)
        if problem is None and entry.seq in self._heads:
            problem = self._bad_head(entry)
        if problem is None:
            self._sealing.add(entry.kind, entry.verdict)
        return problem

    def _bad_form(self, entry: LogEntry) -> str | None:
        if not is_canonical(entry.payload):
            return "its payload is not canonical JSON"
        if entry.causal_deps != "[]" and not is_canonical(entry.causal_deps):
            return "its dependencies are not canonical JSON"
        if not is_ulid(entry.op_id):
            return "its op id is no ULID"
        time = clock_part(entry.hlc, entry.node_id)
        if time is None:
            return "its time is not one of its author"
        if time <= self._time:
            return "its time is not later than that of the entry before it"
        self._time = time
        return None

    def _bad_verdict(self, entry: LogEntry) -> str | None:
        place, accepted, reason, result = entry.id, entry.accepted, entry.reason, entry.result
        if not (type(place) is type(accepted) is int):
            return "its verdict is written as none is"
        if self._last is not None and place <= self._last.id:
            return "it was committed before the entry before it"
        if accepted == 1 and reason is None and result is None:
            return None  # nearly all of them
        if type(reason) not in _OPTIONAL_TEXT or type(result) not in _OPTIONAL_TEXT:
            return "its verdict is written as none is"
        if accepted not in (0, 1) or (accepted == 0 and reason is None):
            return "its verdict is neither accepted nor refused with a reason"
        return None

    def _bad_signature(self, entry: LogEntry) -> str | None:
        if not self._keys:
            return "no key is known for it"
        last = self._last
        if last is not None and last.signature is None and entry.seq in self._first_of_keys:
            return "its key is a new one, and what was before it was not signed with the old one"
        if entry.signature is None and entry.kind not in OWNER_ONLY:
            return None  # the next one that is signed vouches for it
        key = key_at(entry.seq, self._keys)
        if key is None:
            return "no key was in force for it"
        text = signed_text(entry.hash, self._witness.scope_id)
        if entry.signature is not None and not is_signed(text, entry.signature, key):
            is_replaced = self._witness.is_of_replaced_key(entry)
            return _REPLACED if is_replaced else "its signature is not one of its author's key"
        if entry.kind in OWNER_ONLY and entry.accepted:
            if entry.signature is None:
                return "only the owner may author it, and it is not signed"
            if not self._witness.is_of_owner(entry):
                return "only the owner may author it, and its author is not the owner"
        return None

    def _bad_owner(self, entry: LogEntry) -> str | None:
        owners = self._witness.owners
        if entry.kind == TRANSFER:
            return None if owners.is_step(entry) else "the ownership did not pass on by it"
        if entry.kind != INITIALISE or not entry.accepted:
            return None
        is_first = parse(entry.payload)["key"] == owners.initial_key
        is_recorded = owners.key == self._witness.recorded_owner_key
        return None if is_first and is_recorded else "another owner than this is recorded"

    def _bad_seal(self, entry: LogEntry) -> str | None:
        if entry.kind != SEAL:
            return None
        if (entry.accepted, entry.reason, entry.result) != (1, None, None):
            return "a seal is never refused"
        if parse(entry.payload) != self._sealing.claim(entry.seq):
            return f"the verdicts since the last seal (up to entry {entry.seq - 1}) were changed"
        self.sealed_to = entry.seq - 1
        return None

    def _bad_head(self, entry: LogEntry) -> str | None:
        digest, anchor = self._heads[entry.seq]
        if digest != entry.hash:
            return f"{anchor} recorded another hash for it"
        self.anchored_to = entry.seq
        return None

    def report(self) -> ChainReport:
        """Return the result, after the last entry."""
        problem, seq, op_id = self.fault or self._bad_end() or (None, None, None)
        return ChainReport(self.node_id, self.entries, self.sealed_to, self.anchored_to, problem, seq, op_id)

    def _bad_end(self) -> tuple[str, int | None, str | None] | None:
        last = self._last
        seq = 0 if last is None else last.seq
        anchored = max(self._heads, default=0)
        if anchored > seq:
            _, anchor = self._heads[anchored]
            return f"it ends here, but {anchor} recorded entry {anchored}", seq, None
        if last is None:
            if self._witness.may_be_empty(self.node_id):
                return None
            return "its entries are gone, but its key is known", None, None
        if last.signature is None:
            return "it ends with an entry that is not signed: what followed was cut off", seq, last.op_id
        if (key := self._witness.find_unaccepted_key(self.node_id)) is not None:
            return f"the owner never accepted the key {key.public_key}", key.from_seq, None
        if (key := self._witness.find_foreign_key(self.node_id)) is not None:
            return f"the key {key.public_key} is none of the node's", key.from_seq, None
        if (key := self._witness.find_planted_key(self.node_id)) is not None:
            return f"the key {key.public_key} was planted: it did not open the chain", key.from_seq, None
        return None


class LogCheck:
    """Check all entries, chain by chain and in order, and report on each chain."""

    def __init__(self, witness: ChainWitness) -> None:
        self._witness = witness
        self._current: _ChainCheck | None = None
        self._seen: set[str] = set()
        self.chains: list[ChainReport] = []

    def check(self, entry: LogEntry) -> None:
        """Check the next entry."""
        current = self._current
        if current is None or current.node_id != entry.node_id:
            self._end_chain()
            current = self._current = _ChainCheck(entry.node_id, self._witness)
            if entry.node_id in self._seen:
                current.fault = ("its chain comes twice", entry.seq, entry.op_id)
            self._seen.add(entry.node_id)
        current.check(entry)

    def _end_chain(self) -> None:
        if self._current is not None:
            self.chains.append(self._current.report())
            self._current = None

    def finish(self, node_id: str | None = None) -> list[ChainReport]:
        """Return the reports on all chains, or on one, including chains without any entries left."""
        self._end_chain()
        known = sorted({*self._witness.keys, *self._witness.heads}, key=str)  # a hostile row has no text
        for name in known:
            if name not in self._seen and node_id in (None, name):
                self.chains.append(_ChainCheck(name, self._witness).report())
        return self.chains
