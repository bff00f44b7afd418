"""What the rules say of messages, in memory: a list of letters, each claimed or free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vox_mesh.model.messages.records import Message, MessageState

Maker = tuple[str, int]
"""A node, and which of its incarnations."""


@dataclass(eq=False)
class OracleMessage:
    """A message and what became of it."""

    message: Message
    state: str = MessageState.STORED
    attempts: int = 0
    claim: str | None = None
    maker: Maker | None = None
    is_held: bool = False
    waits: bool = False
    """It was given back, and its time has not come."""

    has_expired: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it can still be delivered, or is being."""
        return self.state in (MessageState.STORED, MessageState.DELIVERED)

    @property
    def is_exhausted(self) -> bool:
        """Whether it was tried as often as it may be."""
        return self.attempts >= self.message.max_attempts

    def is_held_before(self, maker: Maker) -> bool:
        """Whether it is in hands that matter to this one: not in those of its own earlier incarnation."""
        if not self.is_held or self.maker is None:
            return False
        return self.maker[0] != maker[0] or self.maker[1] == maker[1]

    def _end(self, state: str) -> None:
        self.state = state
        self.is_held = self.waits = False


class Oracle:
    """Each pair's letters in order, by one consumer at a time; of several pairs the most urgent first."""

    def __init__(self) -> None:
        self.letters: list[OracleMessage] = []

    def send(self, message: Message) -> None:
        """A message was sent."""
        self.letters.append(OracleMessage(message))

    def open_of(self, pair: tuple[str, str]) -> list[OracleMessage]:
        """What is open of a pair, in order."""
        letters = [each for each in self.letters if each.is_open and each.message.pair == pair]
        return sorted(letters, key=lambda each: each.message.hlc)

    # --- claiming --------------------------------------------------------------------------------

    def claim(self, names: Sequence[str], limit: int, maker: Maker) -> list[OracleMessage]:
        """What a consumer is to be given, in order; they are in its hands, under no name yet."""
        self._bury(names, maker)
        pairs = {each.message.pair for each in self.letters if each.message.receiver_agent in names}
        runs = [run for run in (self._run(pair, maker) for pair in pairs) if run]
        runs.sort(key=lambda run: run[0].message.urgency)
        fitting = [(run[0].message.priority, each) for run in runs[:limit] for each in run]
        fitting.sort(key=lambda each: (-each[0], each[1].message.hlc))
        chosen = [letter for _, letter in fitting[:limit]]
        heads = {run[0].message.message_uuid for run in runs}
        for letter in chosen:
            letter.state = MessageState.DELIVERED
            letter.attempts += letter.message.message_uuid in heads
            letter.maker, letter.is_held, letter.waits = maker, True, False
        return self._in_turn(chosen)

    def _bury(self, names: Sequence[str], maker: Maker) -> None:
        for letter in self.letters:
            is_theirs = letter.is_open and letter.message.receiver_agent in names
            if is_theirs and letter.is_exhausted and not letter.is_held_before(maker):
                letter._end(MessageState.DEAD)

    def _run(self, pair: tuple[str, str], maker: Maker) -> list[OracleMessage]:
        """What of a pair may be claimed: nothing while someone works on any of it."""
        letters = self.open_of(pair)
        if any(each.is_held_before(maker) for each in letters):
            return []
        run: list[OracleMessage] = []
        for letter in letters:
            if letter.has_expired:
                continue
            if letter.waits:
                break
            run.append(letter)
        return run

    @staticmethod
    def _in_turn(letters: Iterable[OracleMessage]) -> list[OracleMessage]:
        left = sorted(letters, key=lambda each: each.message.hlc)
        ordered: list[OracleMessage] = []
        while left:
            heads = {each.message.pair: each for each in reversed(left)}
            ordered.append(min(heads.values(), key=lambda each: each.message.urgency))
            left.remove(ordered[-1])
        return ordered

    # --- settling the claimed ones -------------------------------------------------

    def ack(self, letter: OracleMessage) -> None:
        """Its holder is done with it."""
        letter._end(MessageState.ACKED)

    def nack(self, letter: OracleMessage, attempts: int, *, waits: bool) -> None:
        """Its holder gives it back, after this many attempts; the ones it holds behind it go too."""
        for other in self.open_of(letter.message.pair):
            is_behind = other.message.hlc > letter.message.hlc
            if is_behind and other.is_held and other.claim == letter.claim:
                other.is_held, other.state = False, MessageState.STORED
        letter.attempts = attempts
        if letter.is_exhausted:
            letter._end(MessageState.DEAD)
        else:
            letter.is_held, letter.state, letter.waits = False, MessageState.STORED, waits

    def lapse(self, claim: str | None) -> list[OracleMessage]:
        """The lease of a claim is over; which letters it had."""
        had = [each for each in self.letters if each.is_held and each.claim == claim]
        for letter in had:
            letter.is_held = False
        return had

    # --- time, and dead letters --------------------------------------------------------------------

    def come_due(self) -> None:
        """The time has come of all that was given back."""
        for letter in self.letters:
            letter.waits = False

    def keep(self) -> None:
        """End what has expired."""
        for letter in self.letters:
            if letter.is_open and letter.has_expired and not letter.is_held:
                letter._end(MessageState.EXPIRED)

    def retry(self, letter: OracleMessage) -> None:
        """A dead letter is sent again."""
        letter.state, letter.attempts, letter.claim = MessageState.STORED, 0, None

    def seen(self) -> dict[str, tuple[str, int]]:
        """What everybody sees: the state and the attempts of each message."""
        return {each.message.message_uuid: (each.state, each.attempts) for each in self.letters}
