"""Signing: messages sent together share one signature, which is verified once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from vox_mesh.model.base.batch_signature import MAX_TEXTS, join_signature, merkle_tree
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.messages.records import Message, signed_root

Unsigned = tuple[Message, asyncio.Future[str]]


class Signing:
    """Sign the messages of one process. A single message is signed without waiting."""

    def __init__(self, mesh: tuple[str, str]) -> None:
        self._mesh = mesh
        self._sending = 0
        self._waiting: list[Unsigned] = []

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Mark that a message is about to be sent, until the end of the block."""
        self._sending += 1
        try:
            yield
        finally:
            self._sending -= 1

    async def sign(self, message: Message, key: SigningKey) -> Message:
        """Return the message with a signature of its own, or one shared with all that are sent now."""
        if self._sending == 1:
            return message._replace(signature=key.sign(message.signed_text(*self._mesh)))
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._sign_all, key)
        signature: asyncio.Future[str] = loop.create_future()
        self._waiting.append((message, signature))
        return message._replace(signature=await signature)

    def _sign_all(self, key: SigningKey) -> None:
        waiting, self._waiting = [each for each in self._waiting if not each[1].done()], []
        for start in range(0, len(waiting), MAX_TEXTS):
            self._sign(waiting[start : start + MAX_TEXTS], key)

    def _sign(self, together: list[Unsigned], key: SigningKey) -> None:
        texts = [message.signed_text(*self._mesh) for message, _ in together]
        if len(texts) == 1:
            together[0][1].set_result(key.sign(texts[0]))
            return
        root, paths = merkle_tree(texts)
        signature = key.sign(signed_root(root, *self._mesh))
        for (_, signed), path in zip(together, paths, strict=True):
            signed.set_result(join_signature(signature, path))
