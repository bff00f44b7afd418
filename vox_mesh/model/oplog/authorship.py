"""Authorship: which key opened a chain, which node initialised the mesh, and which entries an author signed.

Nothing here relies on a table that merely names a key or an owner: such a row may have been planted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from vox_mesh.model.base.canonical import canonical, is_canonical, parse
from vox_mesh.model.base.keys import is_signed
from vox_mesh.model.oplog.chain import NO_HASH, LogEntry, signed_text
from vox_mesh.model.oplog.verification import INITIALISE, READ_ERRORS, Key, is_whole, key_at

OPEN_CHAIN: Final = "OpenChain"
"""The op by which a node opens its chain, so that its key is known before it has written anything else."""

_KEY_BEARERS: Final = frozenset({OPEN_CHAIN, INITIALISE})
_PLAIN_DEPS: Final = "[]"
_SIGNED: Final = "signed"


class Owner(NamedTuple):
    """The owner of the mesh: the node that initialised it, its key, and the op."""

    node_id: str
    public_key: str
    op_id: str


def initial_owner(entry: LogEntry, scope_id: str) -> Owner | None:
    """Return the owner that an entry establishes; `None` unless that node itself signed this very entry."""
    try:
        if entry.kind != INITIALISE or entry.accepted != 1 or entry.id < 1 or not is_whole(entry):
            return None
        payload: Any = parse(entry.payload)
        node_id, key = payload["node"], payload["key"]
        if entry.author != node_id:
            return None
        is_own = is_signed(signed_text(entry.hash, scope_id), entry.signature or "", key)
    except READ_ERRORS:
        return None
    return Owner(node_id, key, entry.op_id) if is_own else None


def initialisation(node_id: str, key: str, recovery_key: str | None = None) -> str:
    """Return the payload of the op that initialises a mesh, whose crons are added by signed ops."""
    recovery = {} if recovery_key is None else {"recovery": recovery_key}
    return canonical({"crons": _SIGNED, "key": key, "node": node_id, **recovery})


def states_signed_crons(entry: LogEntry) -> bool:
    """Return whether the op that initialised a mesh states that its crons are added by signed ops."""
    try:
        return bool(parse(entry.payload).get("crons") == _SIGNED)
    except READ_ERRORS:
        return False


def opening_key(first: Sequence[LogEntry], recorded: Iterable[str], scope_id: str) -> str | None:
    """Return the key that opened a chain, given its entries from the first one to one that is signed.

    It is one of the recorded keys, or the one that the first entry names; but only if it made the first
    signature.
    """
    if not first or first[0].seq != 1 or first[0].prev != NO_HASH:
        return None
    for key in dict.fromkeys([*recorded, *_named_key(first[0])]):
        if authentic_entries(first, [Key(first[0].node_id, 1, key)], scope_id):
            return key
    return None


def _named_key(entry: LogEntry) -> Iterator[str]:
    if entry.kind in _KEY_BEARERS:
        try:
            key = parse(entry.payload)["key"]
        except READ_ERRORS:
            return
        if isinstance(key, str):
            yield key


def is_authentic(
    entry: LogEntry, following: Sequence[LogEntry], keys: Sequence[Key], scope_id: str = ""
) -> bool:
    """Return whether the author signed the entry, or one that follows it in its chain.

    `following` is the chain from that entry on.
    """
    return bool(following) and following[0] == entry and bool(authentic_entries(following, keys, scope_id))


def authentic_entries(run: Sequence[LogEntry], keys: Sequence[Key], scope_id: str) -> list[LogEntry]:
    """Return the entries, from the first of a run on, that their author signed, itself or by a later one.

    The run is a part of one chain. Usually one signature is checked, the last: it covers all entries before
    it. Only if that one is not the author's are the earlier ones tried.
    """
    signed = max((index for index, entry in enumerate(run, 1) if entry.signature is not None), default=0)
    linked = _linked_part(run[:signed])
    try:
        return linked[: _vouched_count(linked, keys, scope_id)]
    except READ_ERRORS:
        return []


def _vouched_count(linked: Sequence[LogEntry], keys: Sequence[Key], scope_id: str) -> int:
    key = key_at(linked[0].seq, keys) if linked else None
    if key is None:
        return 0
    for count in range(len(linked), 0, -1):
        signer = linked[count - 1]
        if not isinstance(signer.signature, str) or key != key_at(signer.seq, keys):
            continue  # a later key can't vouch for earlier entries
        if is_signed(signed_text(signer.hash, scope_id), signer.signature, key):
            return count
    return 0


def _linked_part(run: Sequence[LogEntry]) -> list[LogEntry]:
    """Return the entries up to the first one that does not follow from the one before it."""
    linked: list[LogEntry] = []
    for entry in run:
        if linked and (entry.prev != linked[-1].hash or entry.seq != linked[-1].seq + 1):
            break
        if not _has_its_hash(entry):
            break
        linked.append(entry)
    return linked


def _has_its_hash(entry: LogEntry) -> bool:
    """Return whether the contents have the hash that is signed.

    Without dependencies nothing but this payload can have this hash, so it need not be checked for its form.
    """
    try:
        if type(entry.seq) is not int or type(entry.payload) is not str or entry.true_hash != entry.hash:
            return False
        is_plain = entry.causal_deps == _PLAIN_DEPS
        return is_plain or (is_canonical(entry.causal_deps) and is_canonical(entry.payload))
    except READ_ERRORS:
        return False
