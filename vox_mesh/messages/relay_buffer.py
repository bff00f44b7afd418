"""The relay buffer: keeps relayed messages for the time when the database is unreachable."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Final, Protocol

from vox_mesh.messages.holds import Holds
from vox_mesh.model.base.recent import Recent
from vox_mesh.model.messages.records import Message, in_turn

MAX_KEPT: Final = 1_024
_MAX_KEPT_BYTES: Final = 16 * 2**20
_MAX_SEEN: Final = 16_384


class Receiver(Protocol):
    """A consumer that waits for messages."""

    def nudge(self, message_uuid: str | None = None) -> None:
        """Note that there is a message: this one, if only one is known."""

    def has_pair(self, pair: tuple[str, str]) -> bool:
        """Return whether it has messages of this pair, handed out or about to be."""


class RelayBuffer:
    """Keep relayed messages until they are found in the database, or handed out because it is unreachable.

    Only messages with a receiver here are kept: all others will be found in the database.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._receivers: dict[str, list[Receiver]] = {}
        self._kept: OrderedDict[str, Message] = OrderedDict()
        self._bytes = 0
        self._retry_at: dict[str, float] = {}  # rejected messages, and when to redeliver them
        self.holds = Holds(monotonic)
        self._seen = Recent[str, bool](_MAX_SEEN)  # handed out; whether it was settled without the database

    # --- receivers -------------------------------------------------------------------------------

    def join(self, names: Iterable[str], receiver: Receiver) -> None:
        """Add a receiver under these names."""
        for name in names:
            self._receivers.setdefault(name, []).append(receiver)

    def leave(self, names: Iterable[str], receiver: Receiver) -> None:
        """Remove a receiver."""
        for name in names:
            others = [each for each in self._receivers.get(name, ()) if each is not receiver]
            if others:
                self._receivers[name] = others
            else:
                self._receivers.pop(name, None)
                self.drop(self.kept_ids([name]))

    @property
    def names(self) -> list[str]:
        """Return the names with a receiver here."""
        return list(self._receivers)

    def nudge(self, name: str, message_uuid: str | None = None) -> None:
        """Tell the receivers of this name that there is a message."""
        for receiver in self._receivers.get(name, ()):
            receiver.nudge(message_uuid)

    # --- relayed messages ------------------------------------------------------------------------

    def add(self, messages: Sequence[Message]) -> None:
        """Keep relayed messages. If there are too many, the oldest are dropped: the database has them too."""
        for message in messages:
            key = message.message_uuid
            if message.receiver_agent in self._receivers and key not in self._kept and key not in self._seen:
                self._kept[key] = message
                self._bytes += len(message.payload)
        while len(self._kept) > MAX_KEPT or self._bytes > _MAX_KEPT_BYTES:
            self._drop(next(iter(self._kept)))
        for message in messages:
            if message.message_uuid not in self._seen:
                self.nudge(message.receiver_agent, message.message_uuid)

    def deliverable(self, names: Sequence[str], prefetched: Set[str], taker: Receiver) -> list[Message]:
        """Return the relayed messages for these names that no consumer has yet, in order.

        A message is left out unless it is the first of its sender, or follows one that was handed out here or
        is about to be (`prefetched`): otherwise it could overtake one that was not relayed. So are pairs of
        which another receiver than `taker` has messages.
        """
        now = self._monotonic()
        kept = [
            each
            for each in self._kept.values()
            if each.receiver_agent in names and not self.holds.is_held(each.message_uuid)
        ]
        kept = [each for each in kept if not self._is_taken_by_other(each, taker)]
        held_back = {each.pair for each in kept if self._retry_at.get(each.message_uuid, 0) > now}
        past = set(prefetched) | {each.message_uuid for each in kept if each.message_uuid in self._seen}
        found: list[Message] = []
        for message in in_turn([each for each in kept if each.message_uuid not in past]):
            is_next = message.after is None or message.after in past or message.after in self._seen
            if is_next and message.pair not in held_back:
                past.add(message.message_uuid)
                found.append(message)
        return found

    def _is_taken_by_other(self, message: Message, taker: Receiver) -> bool:
        others = self._receivers.get(message.receiver_agent, ())
        return any(each is not taker and each.has_pair(message.pair) for each in others)

    def drop_claimed(self, messages: Sequence[Message]) -> None:
        """Drop messages that were claimed from the database."""
        self.drop(message.message_uuid for message in messages)

    def kept_ids(self, names: Sequence[str]) -> list[str]:
        """Return the ids of the messages kept for these names."""
        return [key for key, each in self._kept.items() if each.receiver_agent in names]

    def kept_names(self) -> set[str]:
        """Return the receivers of the kept messages."""
        return {each.receiver_agent for each in self._kept.values()}

    def drop(self, message_uuids: Iterable[str]) -> None:
        """Drop these messages, as far as they are kept."""
        for key in message_uuids:
            self._drop(key)

    def mark_handed_out(self, message: Message) -> None:
        """Record that a message was handed out: it is not kept if it is relayed again."""
        self._seen[message.message_uuid] = False

    def mark_done(self, message: Message) -> None:
        """Record that a relayed message was settled, though the database may not know yet."""
        self.holds.end(message)
        self._seen[message.message_uuid] = True
        self._drop(message.message_uuid)

    def mark_not_done(self, message: Message) -> None:
        """Record that a message will be redelivered: the messages after it have to wait."""
        self._seen.pop(message.message_uuid, None)

    def is_done(self, message: Message) -> bool:
        """Return whether the message was settled without the database."""
        return self._seen.get(message.message_uuid, False)

    def reject(self, message: Message, retry_in: float) -> None:
        """Reject a relayed message: it is redelivered after `retry_in` seconds."""
        self.holds.end(message)
        if message.message_uuid in self._kept:
            self._retry_at[message.message_uuid] = self._monotonic() + retry_in
        self._seen.pop(message.message_uuid, None)

    def _drop(self, key: str) -> None:
        message = self._kept.pop(key, None)
        self._retry_at.pop(key, None)
        if message is not None:
            self._bytes -= len(message.payload)
