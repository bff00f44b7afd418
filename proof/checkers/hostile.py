"""What a hostile client and a hostile writer of the database must not achieve."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any, Final

import orjson

from proof.history import Event, History
from proof.verdicts import Check

STALL_S: Final = 1.0
_MARGIN_S: Final = 2.0
_ATTACKER: Final = "evil"
_MUST_DO: Final = 0.5
"""The share of honest operations that must succeed: a busy machine, and a node that restarts, delay some."""

_ALLOWED: Final = 503
"""A node that can't reach the database, or is overloaded, says so."""


def _span(history: History, begin: str, end: str) -> Callable[[float], bool]:
    """Return whether a time is between two notes."""
    (since,) = [note.at for note in history.notes(begin)][:1] or [float("inf")]
    (until,) = [note.at for note in history.notes(end)][:1] or [float("inf")]
    return lambda at: since <= at < until


# --- the service -------------------------------------------------------------------------------------


def _nothing_fails(history: History) -> Iterator[str | int]:
    """Internal errors; after vandalism they are only counted, unless they end a process."""
    is_vandalised = _span(history, "vandalism", "never")
    yield len(history.notes("up"))
    for note in history.notes("unexpected"):
        if note.data["where"] == "process" or not is_vandalised(note.at):
            yield _error_line(note)


def _error_line(note: Event) -> str:
    trace = str(note.data.get("trace", "")).splitlines()
    place = [line.strip() for line in trace if line.strip().startswith("File")][-1:]
    where, error = note.data["where"][:100], note.data["error"][:300]
    return f"{note.data['player']}: {where}: {error} {' '.join(place)}"


def _no_process_ends(history: History) -> Iterator[str | int]:
    """A vandalised node may end, if it says why; under attack none does, but the one that is killed."""
    is_vandalised = _span(history, "vandalism", "never")
    for note in history.notes("life.ended"):
        yield 1
        if note.data["how"] == "broke" and not is_vandalised(note.at):
            yield f"process {note.data['life']} of {note.data['player']} ended"
    for note in history.notes("broken"):
        if not is_vandalised(note.at):
            yield f"{note.who} stopped: {note.data['error']}"


def _no_500(history: History) -> Iterator[str | int]:
    is_vandalised = _span(history, "vandalism", "never")
    for answer in history.notes("hostile.answer"):
        yield 1
        data = answer.data
        if data["status"] >= 500 and data["status"] != _ALLOWED and not is_vandalised(answer.at):
            yield f"{data['status']} to {data['method']} {data['target']} {data['body']}"


def _problems(history: History) -> Iterator[str | int]:
    is_vandalised = _span(history, "vandalism", "never")
    for answer in history.notes("hostile.answer"):
        data = answer.data
        if data["status"] >= 400 and not is_vandalised(answer.at):
            yield 1
            if data["fault"]:
                yield f"{data['status']} to {data['method']} {data['route']}: {data['fault']}"


def _bad_refused(history: History) -> Iterator[str | int]:
    for answer in history.notes("hostile.answer"):
        data = answer.data
        if data["flaw"] and data["status"]:
            yield 1
            if data["status"] < 400:
                yield f"{data['status']} to {data['method']} {data['route']}, though: {data['flaw']}"


def _every_route(history: History) -> Iterator[str | int]:
    tried = {each.data["route"] for each in history.notes("hostile.tried")}
    routes = {path for note in history.notes("routes") for _, path in note.data["routes"]}
    for path in sorted(routes):
        yield 1
        if tried and path not in tried:
            yield f"{path} was not tried"


# --- stalls ------------------------------------------------------------------------------------------


class _Machine:
    """By how much the machine stretched all work, at any time."""

    def __init__(self, history: History) -> None:
        self._samples = history.notes("machine.stretch")
        self._times = [each.at for each in self._samples]

    def stretch(self, since: float, until: float) -> float:
        """Return the largest stretch around a time."""
        first = bisect_left(self._times, since - _MARGIN_S)
        last = bisect_left(self._times, until + _MARGIN_S)
        stretches: list[float] = [each.data["stretch"] for each in self._samples[first:last]]
        return max(stretches, default=1.0)


def own_lag(late: Event, machine: _Machine) -> float:
    """Return how late a loop would have been on a machine of its own.

    Its thread was on a processor for `computed` seconds; all of its lag is divided by the machine's stretch.
    """
    since: float = late.data["since"]
    seconds: float = late.data["seconds"]
    computed: float = late.data["computed"]
    return max(min(computed, seconds), seconds / machine.stretch(since, since + seconds))


def _no_stall(history: History) -> Iterator[str | int]:
    machine = _Machine(history)
    for note in history.notes("loop.watched"):
        yield note.data["samples"]
    for late in history.notes("loop.late"):
        seconds = own_lag(late, machine)
        if seconds > STALL_S:
            data = late.data
            yield (
                f"{late.who} was late by {data['seconds']:.2f} s, its own part {seconds:.2f} s "
                f"(computed {data['computed']:.2f} s)"
            )


def lag_summary(history: History) -> list[str]:
    """Return the worst lag, and the times that liveness took, in the calm and under attack."""
    ends = {"calm": "attack", "attack": "vandalism", "vandalism": "left"}
    return [_lag_line(history, begin, end) for begin, end in ends.items()]


def _lag_line(history: History, begin: str, end: str) -> str:
    is_in, machine = _span(history, begin, end), _Machine(history)
    late = [each for each in history.notes("loop.late") if is_in(each.at)]
    worst = max((each.data["seconds"] for each in late), default=0.0)
    own = max((own_lag(each, machine) for each in late), default=0.0)
    stretches = [each.data["stretch"] for each in history.notes("machine.stretch") if is_in(each.at)]
    answers = [each.data for each in history.notes("hostile.livez") if is_in(each.at)]
    live = sorted(each["seconds"] for each in answers if each["status"])
    p99 = live[int(len(live) * 0.99)] if live else 0.0
    return (
        f"{begin}: worst lag {worst:.2f} s, own part {own:.2f} s, machine stretched up to "
        f"{max(stretches, default=1.0):.1f}; livez p99 {p99 * 1_000:.0f} ms of {len(live)}"
    )


# --- belief ------------------------------------------------------------------------------------------


_KEYS: Final = ("message with a planted key", "message with the key of a planted chain")


def _keys(history: History) -> Iterator[str | int]:
    for note in history.notes("message.received"):
        yield 1
        if note.data["forged"] in _KEYS:
            yield f"{note.who} received it: {note.data['forged']}"


def _messages(history: History) -> Iterator[str | int]:
    for note in history.notes("message.received"):
        yield 1
        if note.data["forged"] not in ("", *_KEYS):
            yield f"{note.who} received it: {note.data['forged']}"


def _jobs(history: History) -> Iterator[str | int]:
    for note in history.notes("job.ran"):
        yield 1
        if note.data["forged"] not in ("", "cron"):
            yield f"{note.who} ran it: {note.data['forged']}"


def _ends(history: History) -> Iterator[str | int]:
    put_back_at: dict[str, float] = {}
    for note in history.notes("put.back"):
        yield 1
        put_back_at.setdefault(note.data["job"], note.at)
    for note in history.notes("job.ran"):
        if note.at > put_back_at.get(note.data["job"], float("inf")):
            yield f"{note.who} ran {note.data['job']} again, which had ended"


def _outputs(history: History) -> Iterator[str | int]:
    for note in history.notes("output.given"):
        yield 1
        if note.data["forged"]:
            yield f"{note.who} gave job {note.data['job']} an output that its predecessor did not have"


def _crons(history: History) -> Iterator[str | int]:
    for note in history.notes("job.ran"):
        yield 1
        if note.data["forged"] == "cron":
            yield f"{note.who} ran a job of a planted cron"


def _owner(history: History) -> Iterator[str | int]:
    for note in history.notes("believed"):
        yield 1
        for role in ("owner", "coordinator"):
            if str(note.data[role]).startswith(_ATTACKER):
                yield f"{note.who} takes {note.data[role]} for the {role}"


def _routes(history: History) -> Iterator[str | int]:
    for note in history.notes("believed"):
        yield 1
        for kind, node in note.data["routes"].items():
            yield f"{note.who} routes {kind} to {node}"
    for note in history.notes("good.end"):
        if note.data["kind"] == "routed":
            yield 1
            if not note.data["done"]:
                yield f"a job that was routed by the attacker was not run ({note.who})"


def _addresses(history: History) -> Iterator[str | int]:
    for note in history.notes("forgery"):
        if note.data["way"] == "address" and not note.data["refused"]:
            yield 1
    for note in history.notes("trapped"):
        yield f"a node called the attacker: {note.data['line']}"


def _log_verified(history: History) -> Iterator[str | int]:
    planted = {each.data["chain"] for each in history.notes("forgery") if not each.data["refused"]} - {""}
    for note in history.notes("verified"):
        if not note.data["command"].startswith("oplog"):
            continue
        try:
            found = orjson.loads(note.data["out"])
        except orjson.JSONDecodeError:
            yield f"oplog verify failed: {note.data['status']} {note.data['err'][-300:]}"
            continue
        named = {each["node_id"] for each in _chains(found) if each.get("problem")}
        for chain in sorted(planted):
            yield 1
            if chain not in named:
                yield f"oplog verify finds nothing wrong with {chain}"


def _chains(found: Any) -> list[dict[str, Any]]:
    chains: list[dict[str, Any]] = found if isinstance(found, list) else found.get("chains", [])
    return chains


def _jobs_verified(history: History) -> Iterator[str | int]:
    for note in history.notes("verified"):
        if note.data["command"].startswith("job"):
            yield 1
            if note.data["status"] == 0:
                yield f"{note.data['command']} finds nothing wrong"
            if "Traceback" in note.data["err"]:
                yield f"{note.data['command']} failed: {note.data['err'][-300:]}"


# --- honest work -------------------------------------------------------------------------------------


def _work(history: History) -> Iterator[str | int]:
    is_attacked = _span(history, "attack", "vandalism")
    for what in ("good.lock", "good.message", "good.job"):
        tried = [each for each in history.operations(what) if is_attacked(each.began)]
        done = sum(each.is_ok for each in tried)
        yield len(tried)
        if tried and done < _MUST_DO * len(tried):
            errors = {str(each.result.get("error")) for each in tried if not each.is_ok}
            yield f"only {done} of {len(tried)} {what} succeeded: {', '.join(sorted(errors))}"
    for note in history.notes("good.end"):
        if note.data["kind"] != "routed":
            yield 1
            if not note.data["done"]:
                yield f"a {note.data['kind']} of {note.who} came to no end"


HOSTILE_CHECKS: Final = (
    Check(
        "nothing-fails", "no hostile value causes an internal error, and none crashes a node", _nothing_fails
    ),
    Check("no-process-ends", "no node stops under attack", _no_process_ends),
    Check("no-500", "no request makes the service fail", _no_500),
    Check("problems-only", "every refusal is a problem document; of MCP, an error of JSON-RPC", _problems),
    Check("bad-input-refused", "requests that are known to be bad are refused", _bad_refused),
    Check("every-route-tried", "every route of the service was attacked", _every_route),
    Check("no-stall", f"no loop stands still for more than {STALL_S:g} s", _no_stall),
    Check("messages-authentic", "no forged message is delivered", _messages),
    Check("keys-authentic", "no planted key makes a message deliverable", _keys),
    Check("jobs-authentic", "no forged job is run", _jobs),
    Check(
        "ends-final", "no job that has ended is run again, though its row and verdicts say otherwise", _ends
    ),
    Check("outputs-authentic", "no job is given a changed output of its predecessor", _outputs),
    Check("crons-authentic", "no planted cron is fired", _crons),
    Check("owner-authentic", "no planted owner or coordinator is obeyed", _owner),
    Check("routes-authentic", "no planted route is obeyed", _routes),
    Check("addresses-authentic", "no message goes to a planted address", _addresses),
    Check("log-forgery-named", "verifying the log names every chain that was forged", _log_verified),
    Check("job-forgery-named", "verifying a forged job finds it", _jobs_verified),
    Check("work-goes-on", "honest work succeeds during the attack", _work),
)
