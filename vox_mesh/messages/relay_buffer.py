"""Arrivals: what the relay brought, kept for the time when the database can't be asked for it."""

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
    """Whoever waits for messages."""

    def nudge(self, message_uuid: str | None = None) -> None:
        """There is a message; if only one is known of, this one."""

    def has_pair(self, pair: tuple[str, str]) -> bool:
        """Whether it has messages of this pair, handed out or about to be."""


class RelayBuffer:
    """Keeps what was brought until it is found in the database, or handed out because that is away.

    Only for those who receive here: whoever else it is for will find it in the database.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._receivers: dict[str, list[Receiver]] = {}
        self._kept: OrderedDict[str, Message] = OrderedDict()
        self._bytes = 0
        self._waiting: dict[str, float] = {}  # given back, until when
        self.holds = Holds(monotonic)
        self._seen = Recent[str, bool](_MAX_SEEN)  # handed out; whether it was done with on arrival

    # --- who receives ----------------------------------------------------------------------------

    def join(self, names: Iterable[str], receiver: Receiver) -> None:
        """Somebody receives under these names from now on."""
        for name in names:
            self._receivers.setdefault(name, []).append(receiver)

    def leave(self, names: Iterable[str], receiver: Receiver) -> None:
        """Somebody receives no more."""
        for name in names:
            others = [each for each in self._receivers.get(name, ()) if each is not receiver]
            if others:
                self._receivers[name] = others
            else:
                self._receivers.pop(name, None)
                self.drop(self.kept([name]))

    @property
    def names(self) -> list[str]:
        """Under which names somebody receives here."""
        return list(self._receivers)

    def nudge(self, name: str, message_uuid: str | None = None) -> None:
        """There is a message under this name."""
        for receiver in self._receivers.get(name, ()):
            receiver.nudge(message_uuid)

    # --- what was brought ------------------------------------------------------------------------

    def bring(self, messages: Sequence[Message]) -> None:
        """The relay brought these. There is room for so many; the others are in the database all the same."""
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

    def waiting(self, names: Sequence[str], in_stock: Set[str], taker: Receiver) -> list[Message]:
        """What was brought for these, and no consumer has yet, in the order in which to hand it out.

        Only what comes after something that was handed out here, or is about to be (`in_stock`), or is the
        first that its sender sent: what we have not seen, nobody may overtake. Pairs of which another
        receiver than `taker` has messages are left out.
        """
        now = self._monotonic()
        kept = [
            each
            for each in self._kept.values()
            if each.receiver_agent in names and not self.holds.is_held(each.message_uuid)
        ]
        kept = [each for each in kept if not self._is_of_another(each, taker)]
        held_back = {each.pair for each in kept if self._waiting.get(each.message_uuid, 0) > now}
        past = set(in_stock) | {each.message_uuid for each in kept if each.message_uuid in self._seen}
        found: list[Message] = []
        for message in in_turn([each for each in kept if each.message_uuid not in past]):
            is_next = message.after is None or message.after in past or message.after in self._seen
            if is_next and message.pair not in held_back:
                past.add(message.message_uuid)
                found.append(message)
        return found

    def _is_of_another(self, message: Message, taker: Receiver) -> bool:
        others = self._receivers.get(message.receiver_agent, ())
        return any(each is not taker and each.has_pair(message.pair) for each in others)

    def found(self, messages: Sequence[Message]) -> None:
        """These were claimed from the database: that they were brought as well, is of no use any more."""
        self.drop(message.message_uuid for message in messages)

    def kept(self, names: Sequence[str]) -> list[str]:
        """What was brought for these, and is neither claimed nor done with here."""
        return [key for key, each in self._kept.items() if each.receiver_agent in names]

    def kept_names(self) -> set[str]:
        """Return the receivers of what was brought, and is neither claimed nor done with here."""
        return {each.receiver_agent for each in self._kept.values()}

    def drop(self, message_uuids: Iterable[str]) -> None:
        """What was brought of these is of no use any more."""
        for key in message_uuids:
            self._drop(key)

    def handed_out(self, message: Message) -> None:
        """Somebody works on it: if it is brought once more, that is nothing new."""
        self._seen[message.message_uuid] = False

    def done(self, message: Message) -> None:
        """It was handed out on arrival, and is done with, though the database may not know yet."""
        self.holds.end(message)
        self._seen[message.message_uuid] = True
        self._drop(message.message_uuid)

    def not_done(self, message: Message) -> None:
        """It was handed out, and will come again: what was sent after it has to wait."""
        self._seen.pop(message.message_uuid, None)

    def is_done(self, message: Message) -> bool:
        """Whether it was done with on arrival."""
        return self._seen.get(message.message_uuid, False)

    def give_back(self, message: Message, retry_in: float) -> None:
        """It was handed out on arrival, and is to come again."""
        self.holds.end(message)
        if message.message_uuid in self._kept:
            self._waiting[message.message_uuid] = self._monotonic() + retry_in
        self._seen.pop(message.message_uuid, None)

    def _drop(self, key: str) -> None:
        message = self._kept.pop(key, None)
        self._waiting.pop(key, None)
        if message is not None:
            self._bytes -= len(message.payload)
