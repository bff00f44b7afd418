"""Messages as their consumers saw them: handed to one at a time, acknowledged once, and never late.

Examined are the consumers of an inbox with several receivers, which note every hand-out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from proof.checkers.incarnations import RECOVERY_S, incarnations_of, pace_of
from proof.history import Event, History, Operation
from proof.losses import NOTE, Losses
from proof.verdicts import Check
from proof.workload import Pace
from proof.workloads.consumers import PACE_NOTE, is_consumed, lease_of
from vox_mesh.errors import CircuitOpen
from vox_mesh.messages.claims import RELAYED_PREFIX

_SLACK_S: Final = 0.5
"""How far a node's clock may be behind the database's."""

_STIRS_S: Final = 3.0
"""A node that was paused notes an earlier hand-out within this time after it resumes."""

_LATE_S: Final = RECOVERY_S
"""On a healthy database a message waits no longer than this."""

_OF_PROCESSES: Final = frozenset(
    (
        *("kill", "kill-at-point", "absence", "pause", "leave", "replace", "torn-replica", "torn-spool"),
        *("rollback", "store-back", "commits-lost"),
    )
)
"""Faults that may leave messages claimed without a consumer, until the lease is over."""

_REPEATING: Final = frozenset(("duplicate",))
"""Faults in which a claim can be applied again after it was answered: messages that it takes then have no
consumer until the lease is over."""

_ALWAYS: Final = frozenset(("strangers", "compaction"))

Consumer = tuple[str, int, int]
"""The node, its incarnation, and the number of the consumer."""


def _consumer(each: Event | Operation) -> Consumer:
    data = each.data if isinstance(each, Event) else each.args
    return each.who, each.incarnation, data["consumer"]


def _handed(history: History) -> dict[str, list[Event]]:
    """Return the hand-outs of each message, in order."""
    handed: dict[str, list[Event]] = defaultdict(list)
    for event in history.notes("message.handed"):
        if "consumer" in event.data:
            handed[event.data["key"]].append(event)
    return handed


def _acks(history: History) -> dict[str, list[Operation]]:
    """Return the successful acknowledgements of each message, in the order of their ends."""
    acks: dict[str, list[Operation]] = defaultdict(list)
    for operation in history.operations("message.ack"):
        if "consumer" in operation.args and operation.is_ok and not operation.result["spooled"]:
            acks[operation.args["key"]].append(operation)
    return {
        key: sorted(operations, key=lambda operation: operation.ended) for key, operations in acks.items()
    }


# --- one at a time ------------------------------------------------------------------------------------


def handed_to_one(history: History) -> Iterator[str | int]:
    """From a hand-out until its consumer is done with it, a message is handed to no other."""
    losses, ends = Losses(history), _ends(history)
    fenced = _fenced(history)
    for key, events in _handed(history).items():
        yield len(events)
        for first, second in pairwise(events):
            if _consumer(first) == _consumer(second) or losses.touches(first.at, second.at):
                continue
            has_until = min(
                first.at + first.data["left_s"] - _SLACK_S,
                next((at for at in ends[key, *_consumer(first)] if at >= first.at), float("inf")),
                fenced.get((first.who, first.incarnation), float("inf")),
            )
            if second.at < has_until:
                yield (
                    f"message {key} was handed to {_describe(second)} at {second.at:.3f}, while "
                    f"{_describe(first)} had it from {first.at:.3f}"
                )


def _fenced(history: History) -> dict[tuple[str, int], float]:
    """Return when each incarnation ended, or the next one began, which takes over its claims."""
    incarnations = incarnations_of(history)
    began = {(incarnation.node, incarnation.number): incarnation.began for incarnation in incarnations}
    return {
        (incarnation.node, incarnation.number): min(
            incarnation.ended, began.get((incarnation.node, incarnation.number + 1), float("inf"))
        )
        for incarnation in incarnations
    }


def _describe(event: Event) -> str:
    who, incarnation, number = _consumer(event)
    return f"{who}.{incarnation} ({number}, under {event.data['owner']})"


def _ends(history: History) -> dict[tuple[str, str, int, int], list[float]]:
    """Return when each consumer was about to acknowledge, reject or drop a message."""
    ends: dict[tuple[str, str, int, int], list[float]] = defaultdict(list)
    for operation in history.operations("message.ack", "message.nack"):
        if "consumer" in operation.args:
            ends[operation.args["key"], *_consumer(operation)].append(operation.began)
    for event in history.notes("message.let_go"):
        ends[event.data["key"], *_consumer(event)].append(event.at)
    for each in ends.values():
        each.sort()
    return ends


def acked_once(history: History) -> Iterator[str | int]:
    """The acknowledgement of a message succeeds for one consumer only."""
    losses = Losses(history)
    for key, operations in _acks(history).items():
        yield len(operations)
        acknowledged = {
            _consumer(operation): operation for operation in operations if not losses.may_have_lost(operation)
        }
        if len(acknowledged) > 1:
            several = " and ".join(map(str, acknowledged.values()))
            yield f"message {key} was acknowledged by more than one: {several}"


def acked_stays(history: History) -> Iterator[str | int]:
    """An acknowledged message is not handed out again."""
    losses, handed, sends = Losses(history), _handed(history), _sends(history)
    pace = pace_of(history, PACE_NOTE)
    stops = [(each.data["player"], each.at) for each in history.notes("resumed")]
    for key, operations in _acks(history).items():
        kept = [operation for operation in operations if not losses.may_have_lost(operation)]
        if not kept:
            continue
        for event in handed.get(key, ()):
            yield 1
            was_stopped = any(who == event.who and abs(at - event.at) <= _STIRS_S for who, at in stops)
            is_repeated = _is_repeated(event, kept[0], sends[key])
            is_claim_lost = losses.touches(_claimed_at(event, pace), event.at)
            if event.at > kept[0].ended and not (was_stopped or is_repeated or is_claim_lost):
                yield f"message {key} was handed to {_describe(event)} at {event.at:.3f}, after {kept[0]}"


def _claimed_at(event: Event, pace: Pace | None) -> float:
    """Return when a message was claimed. A rollback since then may have lost the claim, and others got it."""
    return event.at if pace is None else event.at + event.data["left_s"] - lease_of(pace) - _SLACK_S


def _sends(history: History) -> dict[str, list[Operation]]:
    sends: dict[str, list[Operation]] = defaultdict(list)
    for operation in history.operations("message.send"):
        sends[operation.args["key"]].append(operation)
    return sends


def _is_repeated(event: Event, ack: Operation, sends: Iterable[Operation]) -> bool:
    """Return whether a message was sent again after its ack, and relayed to a newer process of the node.

    If the database is unreachable, neither side can know that the message is acknowledged.
    """
    is_relayed = event.data["owner"].startswith(RELAYED_PREFIX)
    is_newer = (event.who, event.incarnation) != (ack.who, ack.incarnation)
    return is_relayed and is_newer and any(ack.ended < each.began < event.at for each in sends)


# --- in time ------------------------------------------------------------------------------------------


def handed_in_time(history: History) -> Iterator[str | int]:
    """While nothing is wrong, no message waits so long that it is late.

    At the end, consumers are stopped in the middle of their work: from then on their leases count.
    """
    pace, over = pace_of(history, PACE_NOTE), min((each.at for each in history.notes("over")), default=None)
    if pace is None or over is None:
        return
    troubles = _merged((*_troubles(history, lease_of(pace)), *_rests(history, pace)))
    handed = _handed(history)
    for operation in history.operations("message.send"):
        if not is_consumed(operation.args["to"]) or not operation.is_ok or operation.result["spooled"]:
            continue
        yield 1
        first = min([over, *(event.at for event in handed.get(operation.args["key"], ()))])
        for since, until in _calms(troubles, operation.ended, first):
            if until - since > _LATE_S:
                yield f"{operation} lay for {until - since:.1f} s from {since:.3f} on, when nothing was wrong"
                break


def _troubles(history: History, lease_s: float) -> Iterator[tuple[float, float]]:
    """Return when something was wrong, or may still have had an effect."""
    ends = {event.data["id"]: event.at for event in history.notes("fault.ended")}
    for event in history.notes("fault.began"):
        kind = event.data["kind"]
        if kind not in _ALWAYS:
            ended = ends.get(event.data["id"], float("inf"))
            is_long = kind in _OF_PROCESSES | _REPEATING or event.data.get("repeats", False)
            yield event.at, ended + (lease_s if is_long else 0.0)
    for event in history.notes(NOTE):
        yield event.at, event.at + lease_s
    for incarnation in incarnations_of(history):
        if incarnation.how:
            yield incarnation.ended, incarnation.ended + lease_s


def _rests(history: History, pace: Pace) -> Iterator[tuple[float, float]]:
    """Return when a circuit was open: it stays so for a while after all faults have healed."""
    for operation in history.all_operations:
        if operation.result.get("error") == CircuitOpen.__name__:
            yield operation.began, operation.ended + 2 * pace.rest_s + _SLACK_S


def _merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for since, until in sorted(spans):
        if merged and since <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], until)
        else:
            merged.append((since, until))
    return merged


def _calms(troubles: list[tuple[float, float]], since: float, until: float) -> Iterator[tuple[float, float]]:
    """Return the times between troubles, from one moment to another."""
    for began, ended in troubles:
        if since < began:
            yield since, min(began, until)
        since = max(since, ended)
        if since >= until:
            return
    yield since, until


HANDOUT_CHECKS: Final = (
    Check("handed-to-one", "a message is handed to one consumer at a time", handed_to_one),
    Check("acked-once", "the acknowledgement of a message succeeds for one consumer only", acked_once),
    Check("acked-stays", "a message that was acknowledged is not handed out again", acked_stays),
    Check("handed-in-time", "on a healthy database no message waits for long", handed_in_time),
)
