"""Arrivals: what the relay brought, kept for the time when the database can't be asked for it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from vox_mesh.model.messages import Message, in_turn

MAX_KEPT: Final = 1_024
_MAX_KEPT_BYTES: Final = 16 * 2**20
_MAX_SEEN: Final = 16_384


class Receiver(Protocol):
    """Whoever waits for messages."""

    def nudge(self) -> None:
        """There is a message."""


class Arrivals:
    """Keeps what was brought until it is found in the database, or handed out because that is away.

    Only for those who receive here: whoever else it is for will find it in the database.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._receivers: dict[str, list[Receiver]] = {}
        self._kept: OrderedDict[str, Message] = OrderedDict()
        self._bytes = 0
        self._waiting: dict[str, float] = {}  # given back, until when
        self._seen: OrderedDict[str, bool] = OrderedDict()  # handed out; whether it was done with on arrival

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
                for message in [each for each in self._kept.values() if each.receiver_agent == name]:
                    self._drop(message.message_uuid)

    @property
    def names(self) -> list[str]:
        """Under which names somebody receives here."""
        return list(self._receivers)

    def nudge(self, name: str) -> None:
        """There is a message under this name."""
        for receiver in self._receivers.get(name, ()):
            receiver.nudge()

    def nudge_all(self) -> None:
        """There may be messages for anybody."""
        for name in list(self._receivers):
            self.nudge(name)

    # --- what was brought ------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether nothing more can be kept."""
        return len(self._kept) >= MAX_KEPT or self._bytes >= _MAX_KEPT_BYTES

    def bring(self, messages: Sequence[Message]) -> None:
        """The relay brought these. What does not fit is in the database all the same."""
        for message in messages:
            key = message.message_uuid
            if message.receiver_agent in self._receivers and not self.is_full and key not in self._kept:
                self._kept[key] = message
                self._bytes += len(message.payload)
        for name in {message.receiver_agent for message in messages}:
            self.nudge(name)

    def waiting(self, names: Sequence[str]) -> list[Message]:
        """What was brought for these, and not handed out yet, in the order in which to hand it out."""
        now = self._monotonic()
        kept = [each for each in self._kept.values() if each.receiver_agent in names]
        held_back = {each.pair for each in kept if self._waiting.get(each.message_uuid, 0) > now}
        return in_turn(
            [each for each in kept if each.message_uuid not in self._seen and each.pair not in held_back]
        )

    def found(self, names: Sequence[str], until: Sequence[str]) -> None:
        """The database has answered for these: what had been brought before that is in it, or comes to it."""
        for key in until:
            message = self._kept.get(key)
            if message is not None and message.receiver_agent in names:
                self._drop(key)

    @property
    def keys(self) -> list[str]:
        """What is kept now."""
        return list(self._kept)

    def handed_out(self, message: Message) -> None:
        """Somebody works on it: if it is brought once more, that is nothing new."""
        self._remember(message.message_uuid, is_done=False)

    def done(self, message: Message) -> None:
        """It was handed out on arrival, and is done with, though the database may not know yet."""
        self._remember(message.message_uuid, is_done=True)
        self._drop(message.message_uuid)

    def is_done(self, message: Message) -> bool:
        """Whether it was done with on arrival."""
        return self._seen.get(message.message_uuid, False)

    def give_back(self, message: Message, retry_in: float) -> None:
        """It was handed out on arrival, and is to come again."""
        if message.message_uuid in self._kept:
            self._waiting[message.message_uuid] = self._monotonic() + retry_in
        self._seen.pop(message.message_uuid, None)

    def _remember(self, key: str, *, is_done: bool) -> None:
        self._seen[key] = is_done
        self._seen.move_to_end(key)
        if len(self._seen) > _MAX_SEEN:
            self._seen.popitem(last=False)

    def _drop(self, key: str) -> None:
        message = self._kept.pop(key, None)
        self._waiting.pop(key, None)
        if message is not None:
            self._bytes -= len(message.payload)
