"""Signatures of messages: sign those of this node, and verify that each is of the node it names."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final

from vox_mesh.errors import DatabaseUnavailable
from vox_mesh.model.base.addresses import is_service_url
from vox_mesh.model.base.keys import (
    MAX_TEXTS,
    SigningKey,
    is_signed,
    join_signature,
    merkle_tree,
)
from vox_mesh.model.base.recent import Recent
from vox_mesh.model.messages.records import Message, signature_of, signed_root
from vox_mesh.model.nodes.node_address import SignedAddress
from vox_mesh.model.oplog.key_changes import NodeKeys
from vox_mesh.observability.throttled_logger import ThrottledLogger
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_MAX_KNOWN: Final = 4_096
_MAX_INLINE: Final = 2  # signatures checked on the event loop; more go to threads

_RECHECK_S: Final = 1.0
"""How long new keys that the owner accepted may go unnoticed."""

_RECHECK_FAILED_S: Final = 10.0
_RECHECK_TIMEOUT_S: Final = 0.5
_MAX_PROVEN: Final = 8_192
_UNPROVEN: Final = (b"", "")
_NO_KEYS: Final = NodeKeys()
_Unsigned = tuple[Message, asyncio.Future[str]]


class ProvenSignatures:
    """Signatures that were made or verified in this process: another check of one costs a hash."""

    def __init__(self) -> None:
        self._proven = Recent[str, tuple[bytes, str]](_MAX_PROVEN)

    def add(self, text: bytes, signature: str, key: str) -> None:
        """Note that the signature of a text is by this key."""
        self._proven[signature] = hashlib.sha256(text).digest(), key

    def signer(self, text: bytes, signature: str, keys: Container[str]) -> str | None:
        """Return the key of a known signature of this text, if it is one of these."""
        digest, key = self._proven.get(signature, _UNPROVEN)
        return key if key in keys and digest == hashlib.sha256(text).digest() else None


class Signing:
    """Sign messages: one alone at once, and several sent together with one signature, verified once.

    Enter it while a message is being sent.
    """

    def __init__(self, mesh: tuple[str, str], proven: ProvenSignatures) -> None:
        self._mesh = mesh
        self._proven = proven
        self._sending = 0
        self._waiting: list[_Unsigned] = []

    def __enter__(self) -> None:
        """Count one more message that is being sent."""
        self._sending += 1

    def __exit__(self, *_: object) -> None:
        """Count one less."""
        self._sending -= 1

    async def sign(self, message: Message, key: SigningKey) -> Message:
        """Return the message with a signature of its own, or one shared with all that are sent now."""
        if self._sending == 1:
            return message.with_signature(self._sign(message.signed_text(*self._mesh), key))
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._sign_all, key)
        signature: asyncio.Future[str] = loop.create_future()
        self._waiting.append((message, signature))
        return message.with_signature(await signature)

    def _sign_all(self, key: SigningKey) -> None:
        waiting, self._waiting = [each for each in self._waiting if not each[1].done()], []
        for start in range(0, len(waiting), MAX_TEXTS):
            self._sign_batch(waiting[start : start + MAX_TEXTS], key)

    def _sign_batch(self, batch: list[_Unsigned], key: SigningKey) -> None:
        texts = [message.signed_text(*self._mesh) for message, _ in batch]
        if len(texts) == 1:
            batch[0][1].set_result(self._sign(texts[0], key))
            return
        root, paths = merkle_tree(texts)
        signature = self._sign(signed_root(root, *self._mesh), key)
        for (_, signed), path in zip(batch, paths, strict=True):
            signed.set_result(join_signature(signature, path))

    def _sign(self, text: bytes, key: SigningKey) -> str:
        signature = key.sign(text)
        self._proven.add(text, signature, key.public)
        return signature


_Signed = tuple[str, bytes, str]
"""A signature, the text, and the node that is named."""


async def _find_signers(signed: Sequence[_Signed], keys: Mapping[_Signed, NodeKeys]) -> list[str | None]:
    """Return the key that made each of the signatures; many are checked in threads."""

    def find(some: Sequence[_Signed]) -> list[str | None]:
        return [keys[each].signer(each[1], each[0]) for each in some]

    if len(signed) <= _MAX_INLINE:
        return find(signed)
    half = len(signed) // 2
    found = await asyncio.gather(*(asyncio.to_thread(find, some) for some in (signed[:half], signed[half:])))
    return [signer for some in found for signer in some]


class SenderVerifier:
    """Check signatures. An unknown key is looked up once before its message is refused.

    A replaced key counts for messages that waited when it was replaced, and for nothing else.
    """

    def __init__(self, store: Store, trusted_keys: TrustedKeys, monotonic: Callable[[], float]) -> None:
        self._trusted_keys = trusted_keys
        self._mesh = store.mesh_id
        self._monotonic = monotonic
        self._mark: str | None = None
        self._recheck_at = 0.0
        self._keys = Recent[str, NodeKeys](_MAX_KNOWN)
        self._provisional = Recent[str, NodeKeys](_MAX_KNOWN)
        """The keys of nodes that have not opened their chains: looked up again for each use."""
        self._addresses = Recent[SignedAddress, bool](_MAX_KNOWN)
        self.proven = ProvenSignatures()
        self._log_throttled = ThrottledLogger(_log, monotonic)
        self.forged: Counter[str] = Counter()
        """How many messages were not signed by the node they name, by node; for a bounded number of nodes."""

    async def verify(self, messages: Sequence[Message], *, ask: bool = True) -> list[bool]:
        """Return whether each of the messages was signed by the node it names.

        Without `ask`, only keys that are known already count.
        """
        await self.notice_new_keys()
        keys = [self._keys.get(message.sender_node, _NO_KEYS) for message in messages]
        results = await self._check_all(messages, keys)
        if ask and not all(results):
            doubtful = [index for index, is_genuine in enumerate(results) if not is_genuine]
            for node in dict.fromkeys(messages[index].sender_node for index in doubtful):
                await self._learn(node)
            again = [messages[index] for index in doubtful]
            known = [self._found(message.sender_node) for message in again]
            for index, is_genuine in zip(doubtful, await self._check_all(again, known), strict=True):
                results[index] = is_genuine
        for message, is_genuine in zip(messages, results, strict=True):
            if not is_genuine:
                self._record_forged(message)
        return results

    async def is_address_genuine(self, signed: SignedAddress) -> bool:
        """Return whether an address is well-formed and was signed by the node it names. Verified once."""
        await self.notice_new_keys()
        if signed not in self._addresses:
            node_id, url, *_ = signed.address
            is_genuine = is_service_url(url) and await self.has_signed(
                node_id, signed.address.signed_text(*self._mesh), signed.signature
            )
            if not is_genuine:
                self._log_throttled(logging.ERROR, "forged address refused: node_id=%s", node_id)
                return False
            if self._trusted_keys.is_settled(node_id):
                self._addresses[signed] = True
        return True

    async def has_signed(self, node_id: str, text: bytes, signature: str, *, ask: bool = True) -> bool:
        """Return whether this node signed a text with a key in force; with `ask`, its keys are looked up."""
        known = self._keys.get(node_id, _NO_KEYS).current
        if any(is_signed(text, signature, key) for key in known):
            return True
        if not ask:
            return False
        await self._learn(node_id)
        return any(is_signed(text, signature, key) for key in self._found(node_id).current - known)

    async def is_known(self, node_id: str, *, ask: bool = True) -> bool:
        """Return whether a key of this node is known; without `ask`, without looking it up."""
        if ask and node_id not in self._keys:
            await self._learn(node_id)
        return bool(self._found(node_id).known)

    async def notice_new_keys(self) -> None:
        """Forget the known keys if the owner has accepted others; keep them if the database can't be read."""
        now = self._monotonic()
        if now < self._recheck_at:
            return
        self._recheck_at = now + _RECHECK_S
        try:
            mark = await self._trusted_keys.read_mark(timeout_s=_RECHECK_TIMEOUT_S)
        except DatabaseUnavailable:
            self._recheck_at = now + _RECHECK_FAILED_S
            return
        if mark != self._mark:
            self._mark = mark
            self._keys, self._addresses = Recent(_MAX_KNOWN), Recent(_MAX_KNOWN)

    async def _check_all(self, messages: Sequence[Message], keys: Sequence[NodeKeys]) -> list[bool]:
        signed = [signature_of(message, *self._mesh) for message in messages]
        tasks = {
            (signature, text, message.sender_node): known
            for (signature, text), message, known in zip(signed, messages, keys, strict=True)
        }
        """Messages sent together are checked once."""
        signers = {what: self.proven.signer(what[1], what[0], known.known) for what, known in tasks.items()}
        unproven = [what for what, signer in signers.items() if signer is None]
        for what, signer in zip(unproven, await _find_signers(unproven, tasks), strict=True):
            signers[what] = signer
            if signer is not None:
                self.proven.add(what[1], what[0], signer)
        results: list[bool] = []
        for (signature, text), message, known in zip(signed, messages, keys, strict=True):
            signer = signers[signature, text, message.sender_node]
            results.append(signer is not None and known.covers(signer, message.hlc, message.signature))
        return results

    async def _learn(self, node_id: str) -> None:
        found = await self._trusted_keys.of_node(node_id)
        if not found.known or found == self._keys.get(node_id):  # our copy may be behind
            found = await self._trusted_keys.of_node(node_id, fresh=True)
        self._provisional.pop(node_id, None)
        if found.known:
            is_settled = self._trusted_keys.is_settled(node_id)
            (self._keys if is_settled else self._provisional)[node_id] = found

    def _found(self, node_id: str) -> NodeKeys:
        return self._keys.get(node_id) or self._provisional.get(node_id, _NO_KEYS)

    def _record_forged(self, message: Message) -> None:
        if len(self.forged) < _MAX_KNOWN or message.sender_node in self.forged:
            self.forged[message.sender_node] += 1
        self._log_throttled(
            logging.ERROR,
            "forged message refused: message_id=%s sender=%s node_id=%s",
            message.message_uuid,
            message.sender_agent,
            message.sender_node,
        )
