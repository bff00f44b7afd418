"""The relay buffer: keeps relayed messages for the time when the database is unreachable."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Final, Protocol

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
        for key in self.holds.end_lapsed():
            self._seen.pop(key, None)  # it will be redelivered, and the messages after it have to wait
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
        return any(each is not taker and each.has_pair(message.addresses) for each in others)

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


# --- holds ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Hold:
    """The right of one consumer to a relayed message, until the deadline by our own clock.

    The deadline is `wanted_until`, or the end of the inbox lease if that comes first. `claim_owner` is the
    claim at the database that covers the hold, once this node has made one.
    """

    message: Message
    wanted_until: float
    deadline: float
    claim_owner: str | None = None

    @property
    def claimed(self) -> Message | None:
        """Return the message under the claim that covers the hold, if there is one."""
        return None if self.claim_owner is None else self.message._replace(claim_owner=self.claim_owner)


class Holds:
    """Keep at most one hold of each message."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._holds: dict[str, Hold] = {}

    def begin(self, message: Message, wanted_until: float, leased_until: float) -> None:
        """Hold a message under the name that it carries as its claim."""
        hold = Hold(message, wanted_until, min(wanted_until, leased_until))
        self._holds[message.message_uuid] = hold

    def find(self, message: Message) -> Hold | None:
        """Return the hold under which this message was handed out, unless it has ended."""
        hold = self._find_valid(message.message_uuid)
        return hold if hold is not None and hold.message.claim_owner == message.claim_owner else None

    def is_held(self, message_uuid: str) -> bool:
        """Return whether a consumer has this message."""
        return self._find_valid(message_uuid) is not None

    def end(self, message: Message) -> Hold | None:
        """End the hold under which this message was handed out, and return it."""
        hold = self._holds.get(message.message_uuid)
        if hold is None or hold.message.claim_owner != message.claim_owner:
            return None
        return self._holds.pop(message.message_uuid)

    def end_lapsed(self) -> list[str]:
        """End the holds whose deadline has passed; return the ids of their messages."""
        lapsed = [key for key in self._holds if self._find_valid(key) is None]
        for key in lapsed:
            del self._holds[key]
        return lapsed

    def end_all(self) -> list[Message]:
        """End every hold. Return the messages whose hold is covered by a claim, under that claim."""
        holds, self._holds = self._holds, {}
        return [each.claimed for each in holds.values() if each.claimed is not None]

    def renew(self, message: Message, wanted_until: float, leased_until: float | None) -> bool:
        """Hold a message for longer; return whether it is held."""
        hold = self.find(message)
        if hold is None:
            return False
        hold.wanted_until = wanted_until
        if hold.claim_owner is not None:  # its claim was renewed, and needs no lease of the inbox
            hold.deadline = wanted_until
        elif leased_until is not None:
            hold.deadline = min(wanted_until, leased_until)
        return True

    def extend(self, receiver: str, leased_until: float) -> None:
        """Extend the holds of an inbox whose lease was renewed, up to their wanted ends."""
        for key in list(self._holds):
            hold = self._find_valid(key)
            if hold is not None and hold.message.receiver_agent == receiver and hold.claim_owner is None:
                hold.deadline = max(hold.deadline, min(hold.wanted_until, leased_until))

    def cover(self, messages: Sequence[Message], deadline: float, but: Sequence[Message]) -> list[Message]:
        """Cover these holds, except those in `but`, by a claim of this node. Return the held messages."""
        if not self._holds:
            return []
        left_out = {each.message_uuid for each in but}
        held = [
            each
            for each in messages
            if each.message_uuid not in left_out and self._find_valid(each.message_uuid) is not None
        ]
        for message in held:
            hold = self._holds[message.message_uuid]
            hold.claim_owner, hold.deadline = message.claim_owner, deadline
        return held

    def receivers(self) -> Collection[str]:
        """Return the inboxes of all messages that are held."""
        return {
            each.message.receiver_agent for key, each in list(self._holds.items()) if self._find_valid(key)
        }

    def _find_valid(self, message_uuid: str) -> Hold | None:
        hold = self._holds.get(message_uuid)
        return None if hold is None or self._monotonic() >= hold.deadline else hold
