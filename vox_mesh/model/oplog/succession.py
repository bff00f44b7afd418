"""Succession: the owners of a mesh, one after another, and the acts of each that count.

The first owner signed the op that initialised the mesh. Each further step is an op `TransferOwnership`, which
names the step that it follows by its hash. The new owner signed the op, and the owner before it, or the
recovery key, signed its contents. Nothing depends on the order of commits, which a writer of the database can
change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from vox_mesh.model.base.canonical import canonical, parse
from vox_mesh.model.base.keys import is_signed
from vox_mesh.model.oplog.authorship import Owner, initial_owner
from vox_mesh.model.oplog.chain import LogEntry, signed_text
from vox_mesh.model.oplog.verification import DESIGNATE, READ_ERRORS, ROUTE, TRANSFER, TRUST_SCOPE, is_whole

MAX_ACTS: Final = 4_096
"""How many acts of the previous owner a step lists. All that are in force are listed in any case."""

_PREFIX: Final = b"vox-mesh succession\n"
_PROOF: Final = "proof"


class Transfer(NamedTuple):
    """The contents of an op that passes the ownership on."""

    follows: str
    """The hash of the step before."""

    node_id: str
    public_key: str
    recovery_key: str | None
    since: Mapping[str, int]
    """The chains of the new owner, and the entries from which on its acts count."""

    acts: Sequence[str]
    """The hashes of the acts of the owner before that still count."""

    @property
    def _contents(self) -> dict[str, Any]:
        return {
            "acts": list(self.acts),
            "follows": self.follows,
            "key": self.public_key,
            "node": self.node_id,
            "recovery": self.recovery_key,
            "since": dict(self.since),
        }

    def signed_text(self, scope_id: str) -> bytes:
        """Return the text that the owner before, or the recovery key, signs."""
        return b"%b%b\n%b" % (_PREFIX, scope_id.encode(), canonical(self._contents).encode())

    def payload(self, proof: str) -> str:
        """Return the payload of the op, with the signature of the owner before or the recovery key."""
        return canonical({**self._contents, _PROOF: proof})

    @classmethod
    def read(cls, payload: str) -> tuple[Transfer, str]:
        """Return the contents of a payload, and the signature. Raises one of `READ_ERRORS`."""
        read: Any = parse(payload)
        since = {str(chain): int(seq) for chain, seq in read["since"].items()}
        transfer = cls(
            str(read["follows"]), str(read["node"]), str(read["key"]), read["recovery"], since, read["acts"]
        )
        if transfer.payload(str(read[_PROOF])) != payload:
            raise ValueError("it is not written as a transfer is")
        return transfer, str(read[_PROOF])


class Tenure(NamedTuple):
    """The time of one owner."""

    owner: Owner
    recovery_key: str | None
    hlc: str
    since: Mapping[str, int] | None
    """The entries from which on its acts count, by chain; without it, all in any chain."""

    kept: frozenset[str] | None = None
    """The hashes of the acts that count after its end; without it, it has not ended."""

    def counts(self, entry: LogEntry) -> bool:
        """Return whether an act, if its owner signed it, falls into this tenure."""
        if self.kept is not None:
            return entry.hash in self.kept
        first = 0 if self.since is None else self.since.get(entry.node_id)
        return first is not None and entry.seq >= first


class Succession:
    """All owners up to a step. It does not change; `followed_by` returns a longer one."""

    def __init__(
        self,
        tenures: Sequence[Tenure],
        links: Sequence[str],
        scope_id: str,
        rivals: Sequence[str] = (),
    ) -> None:
        """`links` are the hashes of the ops of all steps; `rivals` those of steps that compete to follow."""
        self.tenures = tuple(tenures)
        self._scope_id = scope_id
        self.links = tuple(links)
        self.rivals = tuple(rivals)

    @classmethod
    def begin(cls, entry: LogEntry, scope_id: str) -> Succession | None:
        """Return the succession that begins with an entry; `None` unless it initialises the mesh."""
        owner = initial_owner(entry, scope_id)
        if owner is None:
            return None
        recovery = parse(entry.payload).get("recovery")
        key = recovery if isinstance(recovery, str) else None
        return cls([Tenure(owner, key, entry.hlc, None)], [entry.hash], scope_id)

    @property
    def initial(self) -> Owner:
        """Return the first owner."""
        return self.tenures[0].owner

    @property
    def initial_key(self) -> str:
        """Return the key of the first owner."""
        return self.initial.public_key

    @property
    def owner(self) -> Owner:
        """Return the last owner, also if its successor is contested."""
        return self.tenures[-1].owner

    @property
    def key(self) -> str | None:
        """Return the key of the present owner; `None` if several steps compete to follow the last one."""
        return None if self.rivals else self.owner.public_key

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys of all owners."""
        return tuple(tenure.owner.public_key for tenure in self.tenures)

    @property
    def recovery_key(self) -> str | None:
        """Return the public recovery key in force."""
        return self.tenures[-1].recovery_key

    def signer(self, entry: LogEntry) -> str | None:
        """Return the key of the owner that signed this very entry in its tenure, or `None`."""
        found = (tenure.owner.public_key for tenure in self.tenures if self._is_of(tenure, entry))
        return next(found, None)

    def is_present_act(self, entry: LogEntry) -> bool:
        """Return whether the last owner signed this very entry, in its tenure."""
        return self._is_of(self.tenures[-1], entry)

    def _is_of(self, tenure: Tenure, entry: LogEntry) -> bool:
        try:
            if entry.signature is None or not tenure.counts(entry) or not is_whole(entry):
                return False
            text = signed_text(entry.hash, self._scope_id)
            return is_signed(text, entry.signature, tenure.owner.public_key)
        except READ_ERRORS:
            return False

    def is_step(self, entry: LogEntry) -> bool:
        """Return whether the entry is one of the steps."""
        return entry.hash in self.links

    def may_act(self, chain: str, key: str) -> bool:
        """Return whether what this key signs next in this chain is an act of the present owner."""
        since = self.tenures[-1].since
        return key == self.key and (since is None or chain in since)

    def followed_by(self, entry: LogEntry) -> Succession | None:
        """Return the succession with one more step; `None` unless the entry is an authentic one."""
        last = self.tenures[-1]
        try:
            # The verdict does not matter: no signature covers it.
            if entry.kind != TRANSFER or entry.hlc <= last.hlc or not is_whole(entry):
                return None
            transfer, proof = Transfer.read(entry.payload)
            is_next = transfer.follows == self.links[-1]
            if not is_next or entry.author != transfer.node_id:
                return None
            text = signed_text(entry.hash, self._scope_id)
            if not is_signed(text, entry.signature or "", transfer.public_key):
                return None
            text = transfer.signed_text(self._scope_id)
            authorities = (last.owner.public_key, last.recovery_key)
            if not any(is_signed(text, proof, key) for key in authorities if key is not None):
                return None
        except READ_ERRORS:
            return None
        return self._extended(transfer, entry)

    def _extended(self, transfer: Transfer, entry: LogEntry) -> Succession:
        *before, last = self.tenures
        if transfer.public_key == last.owner.public_key:  # only the recovery key is another
            tenures = [*before, last._replace(recovery_key=transfer.recovery_key, hlc=entry.hlc)]
        else:
            owner = Owner(transfer.node_id, transfer.public_key, entry.op_id)
            ended = last._replace(kept=frozenset(transfer.acts))
            tenures = [*before, ended, Tenure(owner, transfer.recovery_key, entry.hlc, transfer.since)]
        return Succession(tenures, [*self.links, entry.hash], self._scope_id)

    def contested_by(self, rivals: Sequence[Succession]) -> Succession:
        """Return the succession at a step that several compete to follow.

        No later act counts; earlier ones count if all of the rivals list them.
        """
        *before, last = self.tenures
        kept = [
            each
            for rival in rivals
            if (each := rival.tenures[len(before)].kept) is not None  # not just another recovery key
        ]
        ended = last._replace(kept=frozenset.intersection(*kept) if kept else frozenset())
        place = len(self.links)
        return Succession(
            [*before, ended], self.links, self._scope_id, [each.links[place] for each in rivals]
        )


class Successions:
    """All authentic steps of a log, heard in the order of their times; usually they form one line."""

    def __init__(self, scope_id: str) -> None:
        self._scope_id = scope_id
        self._roots: list[Succession] = []
        self._first: dict[str, LogEntry] = {}
        self._known: dict[str, Succession] = {}
        self._next: dict[str, list[Succession]] = defaultdict(list)

    def hear_first(self, entry: LogEntry) -> bool:
        """Take in an op that initialises the mesh; return whether it is authentic."""
        found = Succession.begin(entry, self._scope_id)
        if found is None or entry.hash in self._known:
            return found is not None
        self._roots.append(found)
        self._first[entry.hash] = entry
        self._known[entry.hash] = found
        return True

    def first_op(self, found: Succession) -> LogEntry:
        """Return the op that a succession begins with."""
        return self._first[found.links[0]]

    def hear(self, entry: LogEntry) -> bool:
        """Take in a further step; return whether it is authentic, and was not heard before."""
        if entry.hash in self._known:
            return False
        try:
            before = self._known.get(parse(entry.payload)["follows"])
        except READ_ERRORS:
            return False
        found = None if before is None else before.followed_by(entry)
        if before is None or found is None:
            return False
        self._known[entry.hash] = found
        self._next[before.links[-1]].append(found)
        return True

    def resolve(self, pinned_key: str | None = None, preferred: Collection[str] = ()) -> Succession | None:
        """Return the succession in force, that of the mesh's first authentic op.

        With a pinned key, the first that has an owner with this key. `preferred`: hashes of steps that were
        in force before; what competes with them came too late.
        """
        for root in self._roots:
            found = self._follow(root, pinned_key, preferred)
            if pinned_key is None or pinned_key in found.keys:
                return found
        return None

    def _follow(self, root: Succession, pinned_key: str | None, preferred: Collection[str]) -> Succession:
        current = root
        while rivals := self._next.get(current.links[-1], []):
            following = self._choose(current, rivals, pinned_key, preferred)
            if following is None:
                return current.contested_by(rivals)
            current = following
        return current

    def _choose(
        self,
        current: Succession,
        rivals: list[Succession],
        pinned_key: str | None,
        preferred: Collection[str],
    ) -> Succession | None:
        known = [each for each in rivals if each.links[-1] in preferred]
        if known or len(rivals) == 1:
            return (known or rivals)[0]
        if len({each.keys for each in rivals}) == 1:
            # The same owner signed them all, and the later one after the other.
            return max(rivals, key=lambda each: (self._depth(each), each.tenures[-1].hlc))
        place = len(current.keys)
        pinned = [each for each in rivals if pinned_key in self._later_keys(each, place)]
        return pinned[0] if len(pinned) == 1 else None

    def _depth(self, step: Succession) -> int:
        return 1 + max(map(self._depth, self._next.get(step.links[-1], [])), default=0)

    def _later_keys(self, step: Succession, place: int) -> set[str]:
        """Return the keys of owners after a place, in all continuations of a step."""
        found = set(step.keys[place:])
        for each in self._next.get(step.links[-1], []):
            found |= self._later_keys(each, place)
        return found


def acts_to_keep(acts: Sequence[LogEntry], limit: int = MAX_ACTS) -> list[str]:
    """Return the hashes of an owner's acts that a step lists: those in force, then the newest others."""
    newest = sorted(acts, key=lambda entry: entry.hlc, reverse=True)
    in_force: dict[Any, LogEntry] = {}
    for entry in newest:
        in_force.setdefault(_subject(entry), entry)
    chosen = {entry.hash: None for entry in in_force.values()}
    for entry in newest:
        if len(chosen) >= limit:
            break
        chosen[entry.hash] = None
    return sorted(chosen)


def _subject(entry: LogEntry) -> Any:
    """Return what an act is about: a later one about the same takes its place."""
    if entry.kind == DESIGNATE:
        return DESIGNATE
    if entry.kind == ROUTE:
        return ROUTE, str(parse(entry.payload).get("kind"))
    if entry.kind == TRUST_SCOPE:
        return TRUST_SCOPE, str(parse(entry.payload).get("scope"))
    return entry.hash  # such as a key that was accepted
