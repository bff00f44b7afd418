"""Bulk sending: many messages by one call, checked together, each stored by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final

from vox_mesh.errors import BadValue, MeshError, NotAllSent, Overloaded
from vox_mesh.messages.drafts import DraftOptions, draft_message
from vox_mesh.messages.relay_outbound import Auto
from vox_mesh.messages.sending import MessageSender
from vox_mesh.model.messages.records import Message
from vox_mesh.store.slices import in_slices
from vox_mesh.store.store import Store

_MAX_AT_ONCE: Final = 10_000
_TOGETHER: Final = 256


def checked_pairs(pairs: Iterable[tuple[str, Any]], options: DraftOptions) -> list[tuple[str, Any]]:
    """Return pairs of a recipient and a body, if they are not too many and can have these options."""
    unsupported = options.keys() - DraftOptions.__optional_keys__
    if unsupported:
        raise BadValue(
            f"messages sent together can't have {', '.join(sorted(unsupported))}",
            hint="leave it out, or send each message by itself",
        )
    found = list(islice(pairs, _MAX_AT_ONCE + 1))
    if len(found) > _MAX_AT_ONCE:
        raise BadValue(f"at most {_MAX_AT_ONCE} messages at once", hint="call send_all several times")
    for each in found:
        if type(each) is not tuple or len(each) != 2:
            raise BadValue(f"a message must be a tuple of a recipient and a body, got {type(each).__name__}")
    return found


async def draft_all(
    sender: str, pairs: Iterable[tuple[str, Any]], now_ms: int, options: DraftOptions
) -> list[Message]:
    """Return drafts with the same options, in this order; let others run between them."""
    return await in_slices(draft_message(sender, to, body, now_ms, **options) for to, body in pairs)


class BulkSender:
    """Send the messages of one call, many at a time."""

    def __init__(self, sender: MessageSender, store: Store, monotonic: Callable[[], float]) -> None:
        self._sender = sender
        self._store = store
        self._monotonic = monotonic

    def deadline(self, timeout: float | None) -> float | None:
        """Return when a call that begins now is to end."""
        return None if timeout is None else self._monotonic() + timeout

    async def send(self, drafts: Sequence[Message], deadline: float | None) -> list[Message]:
        """Send messages in this order. If some fail, raise `NotAllSent` when all were tried.

        After the deadline they are refused without being tried, unless a spool takes them at once.
        """
        outcomes: list[Message | BaseException] = []
        for first in range(0, len(drafts), _TOGETHER):
            outcomes += await self._send_together(drafts[first : first + _TOGETHER], deadline)
        sent = [each for each in outcomes if isinstance(each, Message)]
        if len(sent) < len(drafts):
            raise _not_all_sent(sent, drafts, outcomes)
        return sent

    async def _send_together(
        self, drafts: Sequence[Message], deadline: float | None
    ) -> Sequence[Message | BaseException]:
        left_s = None if deadline is None else max(0.0, deadline - self._monotonic())
        if left_s == 0 and not self._store.is_spooling:
            late = "message not sent: the timeout passed before it was its turn"
            return [Overloaded(late, hint="send fewer at once, or allow more time") for _ in drafts]
        sending = (self._sender.send(draft, Auto, left_s) for draft in drafts)
        return await asyncio.gather(*sending, return_exceptions=True)


def _not_all_sent(
    sent: Sequence[Message], drafts: Sequence[Message], outcomes: Sequence[Message | BaseException]
) -> BaseException:
    """Return the error about messages that failed; an unexpected one, which is a bug, is returned itself."""
    failed: list[tuple[Message, MeshError]] = []
    for draft, error in zip(drafts, outcomes, strict=True):
        if isinstance(error, MeshError):
            failed.append((draft, error))
        elif isinstance(error, BaseException):
            return error
    return NotAllSent(sent, failed)
