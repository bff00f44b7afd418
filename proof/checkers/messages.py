"""Messages: none is lost or duplicated, those of a pair are in order, none is handed out after its expiry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import orjson

from proof.checkers.locks import FADES
from proof.final_state import Row, final_rows, grouped
from proof.history import History, Operation
from proof.losses import Losses
from proof.verdicts import Check
from proof.workloads.messages import UNREADABLE_PAYLOAD, is_received
from vox_mesh.model.messages.records import MessageState

_OPEN: Final = frozenset({MessageState.STORED, MessageState.DELIVERED})
_ON_ARRIVAL: Final = "arrival:"
_USED_UP: Final = "not acknowledged in "
"""How the reason of a dead letter begins whose attempts are used up."""

_LOOKED_AT: Final = 8
"""A late message waits for at most this many later ones that are claimed already."""

_NOTED_MS: Final = 2_000
"""A node that is not paused notes a hand-out within this time."""

_EARLY_S: Final = 0.5
"""How far the clock of a sender may be behind the database's."""

_STIRS_S: Final = 3.0
"""A node that was paused goes on within this time."""


def _sends(history: History) -> dict[str, list[Operation]]:
    """Return the sends, by key."""
    sends: dict[str, list[Operation]] = {}
    for operation in history.operations("message.send", "message.broadcast"):
        for key in (
            operation.result.get("keys", ())
            if operation.what == "message.broadcast"
            else (operation.args["key"],)
        ):
            sends.setdefault(key, []).append(operation)
    return sends


# --- ends -----------------------------------------------------------------------------------------


def acked(history: History) -> Iterator[str | int]:
    """Every message that was sent exists, and has ended according to the rules."""
    rows = {row["message_uuid"]: row for row in final_rows(history, "a2a_messages")}
    acks, losses = _by_key(history.operations("message.ack")), Losses(history)
    for key, sends in _sends(history).items():
        row = rows.get(key)
        if row is not None:
            yield 1
            yield from (f"message {key} {fault}" for fault in _wrong_end(row, acks.get(key, []), losses))
        elif any(operation.is_ok and not _may_be_gone(operation, key, losses) for operation in sends):
            yield f"message {key} was sent and is not there: {sends[0]}"
    for key, moves in grouped(final_rows(history, "proof_message_moves"), "message_uuid").items():
        ends = [move["state"] for move in moves if move["state"] not in _OPEN and move["deed"] != "delete"]
        if moves[-1]["state"] in _OPEN and ends:
            yield f"message {key} went on after its end: {', '.join(move['state'] for move in moves)}"


def _may_be_gone(send: Operation, key: str, losses: Losses) -> bool:
    """Return whether a rollback may have lost a message; some of a broadcast's can have been spooled."""
    spooled = send.result["spooled"]
    is_spooled = key in spooled if send.what == "message.broadcast" else spooled
    return losses.may_have_lost(send, is_spooled=is_spooled)


def _wrong_end(row: Row, acks: list[Operation], losses: Losses) -> Iterator[str]:
    state = row["state"]
    if state in _OPEN:
        if is_received(row["receiver_agent"]):
            yield f"is {state}, and no more was to come: {row}"
    elif state == MessageState.ACKED and not any(operation.may_have_happened for operation in acks):
        yield "is acked, and no consumer acknowledged it"
    elif state == MessageState.DEAD and row["delivery_attempts"] < row["max_attempts"]:
        yield f"is dead after {row['delivery_attempts']} of {row['max_attempts']} attempts"
    elif state == MessageState.EXPIRED and not (row["expires_ms"] and row["expires_ms"] <= row["ended_ms"]):
        yield f"had expired at {row['ended_ms']}, before its time: {row['expires_ms']}"
    for operation in acks:
        # A relayed message is not claimed in the database, and may expire there while it is processed.
        is_late = state == MessageState.EXPIRED and str(operation.args["owner"]).startswith(_ON_ARRIVAL)
        is_told = operation.is_ok and not operation.result["spooled"] and not losses.may_have_lost(operation)
        if is_told and state != MessageState.ACKED and not is_late:
            yield f"is {state} though it was acknowledged: {operation}"


def unreadable_ended(history: History) -> Iterator[str | int]:
    """A message that can't be passed on becomes a dead letter, and no consumer sees it.

    The node that claims it sees to that at once: if claims fail until its attempts are used up, others wait.
    """
    handed = {note.data["key"] for note in history.notes("message.handed")}
    for row in final_rows(history, "a2a_messages"):
        if row["payload"] == UNREADABLE_PAYLOAD and is_received(row["receiver_agent"]):
            yield 1
            if row["state"] != MessageState.DEAD or row["message_uuid"] in handed:
                yield f"unreadable message {row['message_uuid']} is {row['state']}"
            elif (reason := row["ended_reason"]).startswith(_USED_UP):
                yield f"unreadable message {row['message_uuid']} is dead only by its attempts: {reason}"


def once(history: History) -> Iterator[str | int]:
    """A message sent under one key, however often, exists once; if all were rejected, it does not."""
    by_key: dict[str, list[str]] = {}
    for row in final_rows(history, "a2a_messages"):
        body = orjson.loads(row["payload"])
        if isinstance(body, dict) and "key" in body:
            by_key.setdefault(body["key"], []).append(row["message_uuid"])
    came: dict[str, int] = {}
    for move in final_rows(history, "proof_message_moves"):
        if move["deed"] == "insert":
            came[move["message_uuid"]] = came.get(move["message_uuid"], 0) + 1
    for key, sends in _sends(history).items():
        yield 1
        there = by_key.get(key, [])
        if len(there) > 1 or came.get(key, 0) > 1:
            yield f"the key {key} has become {max(len(there), came.get(key, 0))} messages"
        if there and not any(operation.may_have_happened for operation in sends):
            yield f"message {key} is there, and every send was refused: {sends[0]}"


# --- the order ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Letter:
    """A message that has not ended, as the witness saw it."""

    key: str
    hlc: str
    expires_ms: int | None
    came: int
    """The index of its first transition."""
    state: str
    owner: str | None = None
    until_ms: int = 0
    claimed: int = 0
    """The index of its last claim."""

    def has_expired(self, at_ms: int) -> bool:
        return self.expires_ms is not None and self.expires_ms <= at_ms

    def is_held(self, at_ms: int) -> bool:
        return self.state == MessageState.DELIVERED and self.until_ms > at_ms


def in_order(history: History) -> Iterator[str | int]:
    """Follow the witness: one consumer at a time for a pair, and no message before an earlier one.

    Messages to a role that are not ordered may be handled at the same time and in any order.
    """
    pairs: dict[tuple[str, str], dict[str, _Letter]] = {}
    acks = _Acks(history)
    moves = list(final_rows(history, "proof_message_moves"))
    acked_ms = {move["message_uuid"]: move["at_ms"] for move in moves if move["state"] == MessageState.ACKED}
    for move in moves:
        is_parallel = move.get("is_ordered") == 0
        one = move["message_uuid"] if is_parallel else move["sender_agent"]  # in parallel: a pair of its own
        letters = pairs.setdefault((one, move["receiver_agent"]), {})
        letter = letters.get(move["message_uuid"])
        if move["deed"] == "insert":
            key = move["message_uuid"]
            letter = letters[key] = _Letter(key, move["hlc"], move["expires_ms"], move["id"], move["state"])
        if letter is None:
            continue  # it had ended
        yield from _moved(letter, move, letters, acked_ms, acks)
        if move["state"] not in _OPEN or move["deed"] == "delete":
            del letters[letter.key]


class _Acks:
    """Acknowledgements that the database does not show: they are spooled, or a rollback has lost them."""

    def __init__(self, history: History) -> None:
        losses = Losses(history)
        acks = [operation for operation in history.operations("message.ack") if operation.may_have_happened]
        self._all = _by_key(acks)
        self._spooled = _by_key(operation for operation in acks if operation.result.get("spooled"))
        self._lost = _by_key(operation for operation in acks if losses.may_have_lost(operation))
        self._sends = _by_key(history.operations("message.send"))

    def explain(self, earlier: _Letter, later: _Letter, owner: str | None) -> bool:
        """Return whether the later message may be acknowledged under this claim, before the earlier one.

        - Its consumer acknowledged both in order, and the ack of the earlier one waits in the spool.
        - The ack of the earlier one was lost, and the consumer still has both under the claim of that time.
        - That was lost, from any consumer, and the ack of the later one was spooled: its process repeats it
          when the message comes again, under a new claim.
        - It was acknowledged before the earlier one was sent, and sent again afterwards, with a later time.
        """
        lost = self._lost.get(earlier.key, [])
        if any(operation.args["owner"] == earlier.owner for operation in lost):
            return True
        acks = self._all.get(later.key, [])
        in_order = _in_order(self._spooled.get(earlier.key, []), acks)
        if any(
            (first.who, first.incarnation) == (second.who, second.incarnation) for first, second in in_order
        ):
            return True
        is_repeated = all(operation.args["owner"] != owner for operation in acks)
        if is_repeated and any(_in_order(acks, self._sends.get(earlier.key, [])[:1])):
            return True
        return is_repeated and any(_in_order(lost, self._spooled.get(later.key, [])))


def _in_order(first: list[Operation], second: list[Operation]) -> Iterator[tuple[Operation, Operation]]:
    """Return the pairs of one of the first, and one of the second that was done later."""
    return ((one, other) for one in first for other in second if one.began < other.began)


def _by_key(operations: Iterable[Operation]) -> dict[str, list[Operation]]:
    by_key: dict[str, list[Operation]] = {}
    for operation in operations:
        by_key.setdefault(operation.args["key"], []).append(operation)
    return by_key


def _moved(
    letter: _Letter,
    move: Row,
    letters: dict[str, _Letter],
    acked_ms: dict[str, int],
    acks: _Acks,
) -> Iterator[str | int]:
    owner, at_ms = move["claim_owner"], move["at_ms"]
    if move["state"] == MessageState.DELIVERED and (not letter.is_held(at_ms) or owner != letter.owner):
        yield 1
        letter.claimed = move["id"]
        yield from _rivals(letter, owner, at_ms, letters)
    elif move["state"] == MessageState.ACKED and not str(owner).startswith(_ON_ARRIVAL):
        for other in letters.values():
            is_earlier = other.hlc < letter.hlc and other.came < letter.claimed
            is_together = acked_ms.get(other.key) == at_ms  # in one statement, which has no defined order
            is_owed = is_earlier and not is_together and not other.has_expired(at_ms)
            if is_owed and not acks.explain(other, letter, owner):
                yield f"message {letter.key} was acknowledged at {at_ms} before {other.key}, which is earlier"
    letter.state, letter.owner, letter.until_ms = move["state"], owner, move["claim_until_ms"] or 0


def _rivals(letter: _Letter, owner: str, at_ms: int, letters: dict[str, _Letter]) -> Iterator[str]:
    """Yield other holders of earlier messages of the pair."""
    before = sorted((each for each in letters.values() if each.hlc < letter.hlc), key=lambda each: each.hlc)
    for other in before[:_LOOKED_AT]:
        if other.is_held(at_ms) and other.owner != owner and not _is_successor(owner, other.owner):
            yield (
                f"message {letter.key} was claimed by {owner} at {at_ms}, "
                f"while {other.owner} had {other.key} of the same pair until {other.until_ms}"
            )


def _is_successor(owner: str, other: str | None) -> bool:
    """Return whether a claim is of a later incarnation of the same node, which takes over the claims."""
    node, _, incarnation = owner.rpartition(":")[0].rpartition("#")
    other_node, _, other_incarnation = str(other).rpartition(":")[0].rpartition("#")
    return (
        node == other_node
        and incarnation.isdecimal()
        and other_incarnation.isdecimal()
        and int(incarnation) > int(other_incarnation)
    )


def by_holder(history: History) -> Iterator[str | int]:
    """A message was acknowledged by its holder, while its claim was valid."""
    holders: dict[str, str] = {}
    for key, moves in grouped(final_rows(history, "proof_message_moves"), "message_uuid").items():
        for before, now in pairwise(moves):
            if now["state"] != MessageState.ACKED or str(now["claim_owner"]).startswith(_ON_ARRIVAL):
                continue
            yield 1
            holders[key] = now["claim_owner"]
            if before["state"] != MessageState.DELIVERED or before["claim_until_ms"] <= now["at_ms"]:
                yield f"message {key} was acknowledged at {now['at_ms']}, without a holder: {before}"
    losses = Losses(history)
    for operation in history.operations("message.ack"):
        if losses.may_have_lost(operation):
            continue
        holder = holders.get(operation.args["key"], operation.args["owner"])
        is_claimed = not str(operation.args["owner"]).startswith(_ON_ARRIVAL)
        if (
            operation.is_ok
            and not operation.result["spooled"]
            and is_claimed
            and operation.args["owner"] != holder
        ):
            yield f"{operation.who} acknowledged {operation.args['key']} of {holder}: {operation}"


# --- expiry ---------------------------------------------------------------------------------------


def never_after_expiry(history: History) -> Iterator[str | int]:
    """No expired message was claimed, by the witness, or handed to a consumer."""
    owners: dict[str, str | None] = {}
    for move in final_rows(history, "proof_message_moves"):
        key, expires_ms = move["message_uuid"], move["expires_ms"]
        is_claim = move["state"] == MessageState.DELIVERED and move["claim_owner"] != owners.get(key)
        owners[key] = move["claim_owner"] if move["state"] == MessageState.DELIVERED else None
        if is_claim and expires_ms is not None:
            yield 1
            if expires_ms <= move["at_ms"]:
                yield f"message {key} was claimed at {move['at_ms']}, and had expired at {expires_ms}"
    stops = [(each.data["player"], each.at) for each in history.notes("resumed")]
    for event in history.notes("message.handed"):
        expires_ms, now_ms = event.data["expires_ms"], event.data["now_ms"]
        if expires_ms is None:
            continue
        yield 1
        was_stopped = any(who == event.who and abs(at - event.at) <= _STIRS_S for who, at in stops)
        if now_ms > expires_ms + _NOTED_MS and not was_stopped:
            yield f"{event.who} was handed {event.data['key']} at {now_ms}: it had expired at {expires_ms}"


def never_before_expiry(history: History) -> Iterator[str | int]:
    """No message expired before its TTL had truly passed, whatever the database's clock showed."""
    seen = {event.data["key"]: event.at for event in history.notes("monitor.expired")}
    first: dict[str, Operation] = {}
    for operation in history.operations("message.send"):
        if operation.args.get("ttl") is not None:
            first.setdefault(operation.args["key"], operation)
    for key, operation in first.items():
        if key in seen:
            yield 1
            if seen[key] < operation.began + (1 - FADES) * operation.args["ttl"] - _EARLY_S:
                yield f"message {key} had expired at {seen[key]:.3f}, before its time: {operation}"


MESSAGE_CHECKS: Final = (
    Check("messages-acked", "every message sent is acknowledged, expires, or is a dead letter", acked),
    Check("messages-once", "a message sent twice under one key exists once", once),
    Check("acked-by-holder", "only the holder of a message can acknowledge it", by_holder),
    Check("messages-in-order", "each sender's messages to a receiver come one by one, in order", in_order),
    Check("unreadable-not-handed-out", "no message that can't be passed on is handed out", unreadable_ended),
    Check("never-after-expiry", "no expired message is handed out", never_after_expiry),
    Check("never-before-expiry", "no message expires before its time has truly passed", never_before_expiry),
)
