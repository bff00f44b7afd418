"""The check of a log: chain by chain, entry by entry, up to the first invalid one of each."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Final

from vox_mesh.model.base.canonical import is_canonical, parse
from vox_mesh.model.base.hlc import clock_part
from vox_mesh.model.base.keys import is_signed
from vox_mesh.model.base.ulid import is_ulid
from vox_mesh.model.oplog.chain import NO_HASH, SEAL, LogEntry, Sealing, signed_text
from vox_mesh.model.oplog.checkpoint import ChainCheckpoint
from vox_mesh.model.oplog.verification import (
    INITIALISE,
    OWNER_ONLY,
    READ_ERRORS,
    TRANSFER,
    ChainReport,
    ChainWitness,
    Key,
    key_at,
)

_SPECIAL: Final = frozenset({INITIALISE, TRANSFER, SEAL})
_OPTIONAL_TEXT: Final = (str, type(None))
_REPLACED: Final = "it was signed with a replaced key of its node"


class _ChainCheck:
    """Check the entries of one chain, in order, up to the first invalid one."""

    def __init__(
        self, node_id: str, witness: ChainWitness, checkpoint: ChainCheckpoint | None = None
    ) -> None:
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
        self._deleted = witness.deleted
        self._has_deletions = bool(self._deleted)
        self._has_crossed = False
        self._sealed = self._verified = checkpoint
        if checkpoint is not None:
            self._resume(checkpoint)

    def _resume(self, checkpoint: ChainCheckpoint) -> None:
        self._last = seal = checkpoint.seal
        self._time = clock_part(seal.hlc, seal.node_id) or ""
        self._sealing.add(SEAL, seal.verdict)
        self.entries, self.sealed_to, self.anchored_to = seal.seq, seal.seq - 1, checkpoint.anchored_to

    @property
    def checkpoint(self) -> ChainCheckpoint | None:
        """Return the last seal that is verified and signed for; `None` without one, or in a broken chain."""
        return None if self.fault else self._verified

    def check(self, entry: LogEntry) -> None:
        """Check the next entry."""
        self.entries += 1
        if self.fault is not None:
            return
        is_leftover = self._has_deletions and self._deleted.may_lack(entry)
        try:
            problem = _bad_contents(entry) if is_leftover else self._problem(entry)
        except READ_ERRORS as error:
            problem = f"it holds something that no entry can hold: {error}"
        if problem is not None:
            self.fault = (problem, entry.seq, entry.op_id)
        if not is_leftover:
            self._last = entry

    def _crosses(self, entry: LogEntry) -> bool:
        """Return whether all entries between the last one and this one were deleted; a seal comes next."""
        last = self._last
        if last is None or type(entry.seq) is not int or entry.kind != SEAL:
            return False
        end = (entry.seq - 1, entry.prev)
        return self._deleted.bridges(self.node_id, (last.seq, last.hash), end)

    def _problem(self, entry: LogEntry) -> str | None:
        last = self._last
        expected, prev = (1, NO_HASH) if last is None else (last.seq + 1, last.hash)
        self._has_crossed = entry.seq != expected and self._crosses(entry)
        if self._has_crossed:
            expected, prev = entry.seq, entry.prev
        if entry.seq != expected:
            return f"entry {expected} is missing" if entry.seq > expected else "its number comes twice"
        if entry.prev != prev:
            return "it is not linked to the entry before it"
        if (problem := _bad_contents(entry)) is not None:
            return problem
        problem = self._bad_form(entry) or self._bad_verdict(entry) or self._bad_signature(entry)
        if problem is None and entry.kind in _SPECIAL:
            problem = self._bad_owner(entry) or self._bad_seal(entry)
        if problem is None and entry.seq in self._heads:
            problem = self._bad_head(entry)
        if problem is None:
            self._sealing.add(entry.kind, entry.verdict)
            if entry.kind == SEAL:
                self._sealed = ChainCheckpoint(entry, self.anchored_to)
            if entry.signature is not None:  # it vouches for all before it
                self._verified = self._sealed
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
        if self._has_deletions and self._deleted.is_backdated(entry):
            return "it lies among archived entries, and no segment has it"
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
        # After a gap the owner's op vouches for it: what it seals is in the archive.
        if not self._has_crossed and parse(entry.payload) != self._sealing.claim(entry.seq):
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


def _bad_contents(entry: LogEntry) -> str | None:
    return None if entry.true_hash == entry.hash else "its contents do not have its hash"


class LogCheck:
    """Check all entries, chain by chain and in order, and report on each chain.

    Chains with a checkpoint go on from it: their entries up to it must be left out.
    """

    def __init__(
        self, witness: ChainWitness, checkpoints: Mapping[str, ChainCheckpoint] | None = None
    ) -> None:
        self._witness = witness
        self._begun = {} if checkpoints is None else checkpoints
        self._current: _ChainCheck | None = None
        self._seen: set[str] = set()
        self.chains: list[ChainReport] = []
        self.checkpoints: dict[str, ChainCheckpoint] = {}
        """From where each chain can be verified the next time."""

    def check(self, entry: LogEntry) -> None:
        """Check the next entry."""
        current = self._current
        if current is None or current.node_id != entry.node_id:
            self._end_chain()
            current = self._current = self._begin(entry.node_id)
            if entry.node_id in self._seen:
                current.fault = ("its chain comes twice", entry.seq, entry.op_id)
            self._seen.add(entry.node_id)
        current.check(entry)

    def _begin(self, chain: str) -> _ChainCheck:
        return _ChainCheck(chain, self._witness, self._begun.get(chain))

    def _end_chain(self) -> None:
        if self._current is not None:
            self._report(self._current)
            self._current = None

    def _report(self, check: _ChainCheck) -> None:
        report = check.report()
        self.chains.append(report)
        if report.problem is None and check.checkpoint is not None:
            self.checkpoints[report.node_id] = check.checkpoint

    def finish(self, node_id: str | None = None) -> list[ChainReport]:
        """Return the reports on all chains, or on one, including chains without any entries left."""
        self._end_chain()
        for name in _unseen(self._witness, self._seen, node_id):
            self._report(self._begin(name))
        return self.chains


class CommitOrderCheck:
    """Check all entries in the order of their commits, in which the chains alternate, and report on each."""

    def __init__(self, witness: ChainWitness) -> None:
        self._witness = witness
        self._checks: dict[str, _ChainCheck] = {}

    def check(self, entry: LogEntry) -> None:
        """Check the next entry."""
        chain = entry.node_id
        if chain not in self._checks:
            self._checks[chain] = _ChainCheck(chain, self._witness)
        self._checks[chain].check(entry)

    def finish(self, node_id: str | None = None) -> list[ChainReport]:
        """Return the reports on all chains, or on one, including chains without any entries left."""
        found = [self._checks[chain].report() for chain in sorted(self._checks, key=str)]
        unseen = _unseen(self._witness, self._checks, node_id)
        return [*found, *(_ChainCheck(name, self._witness).report() for name in unseen)]


def _unseen(witness: ChainWitness, seen: Container[str], node_id: str | None) -> list[str]:
    """Return the chains that are known, and of which no entry was checked."""
    known = sorted({*witness.keys, *witness.heads}, key=str)  # a hostile row has no text
    return [name for name in known if name not in seen and node_id in (None, name)]
