"""Capabilities: one line of a grant each, such as `lock.acquire on file:src/web/**`.

The words are an action, what it is done to (`on` a key, `to` a recipient, `kind` of job), for commands
`program`, `args` and `env`, and limits: `rate 30/1m` and `open 100`. What is not restricted is left out. A
line that begins with `ask` is allowed after an approval only; `can`, which may be left out, allows it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from vox_mesh.errors import BadValue
from vox_mesh.model.base.durations import milliseconds, short_duration
from vox_mesh.model.jobs.records import check_pattern
from vox_mesh.model.locks.patterns import key_covers, normalise, prefix_covers
from vox_mesh.model.messages.records import EVERYONE, checked_word

CAN: Final = "can"
ASK: Final = "ask"

READ: Final = "mesh.read"
ACQUIRE: Final = "lock.acquire"
BREAK: Final = "lock.break"
SEND: Final = "message.send"
RECEIVE: Final = "message.receive"
"""To receive messages to a role. Its own messages each agent receives."""

SCHEDULE: Final = "job.schedule"
TAKE: Final = "job.take"
ABORT: Final = "job.abort"
ANSWER: Final = "job.answer"
EXECUTE: Final = "job.exec"
ADD_CRON: Final = "cron.add"
REMOVE_CRON: Final = "cron.remove"
ADD_RULE: Final = "rule.add"
REMOVE_RULE: Final = "rule.remove"
SET_KIND: Final = "kind.set"
RESOLVE: Final = "conflict.resolve"
SET_BUDGET: Final = "budget.set"
SET_RETENTION: Final = "retention.set"
SET_TEMPO: Final = "tempo.set"
DRAIN: Final = "node.drain"
APPEND: Final = "op.append"
DESIGNATE: Final = "roles.designate"
ROUTE: Final = "roles.route"
REKEY: Final = "roles.rekey"

ACTIONS: Final = (
    *(READ, ACQUIRE, BREAK, SEND, RECEIVE),
    *(SCHEDULE, TAKE, ABORT, ANSWER, EXECUTE),
    *(ADD_CRON, REMOVE_CRON, ADD_RULE, REMOVE_RULE, SET_KIND, RESOLVE),
    *(SET_BUDGET, SET_RETENTION, SET_TEMPO, DRAIN, APPEND, DESIGNATE, ROUTE, REKEY),
)
"""All actions that a grant can name."""

EVERYTHING: Final = "*"
"""The action that stands for all."""

_PREPOSITIONS: Final = {"lock": "on", "message": "to", "job": "kind", "op": "kind"}
"""The word before the resource, by the first part of the action."""

_ANY_ARGS: Final = "**"
_MAX_COUNT: Final = 10_000
"""The maximum of a rate and of open items: each use that counts is a row of the database."""
_MAX_WINDOW_MS: Final = 366 * 86_400_000
_LIMITS: Final = ("rate", "open")
_HINT: Final = "for example `lock.acquire on file:src/**` or `job.schedule kind notes.* rate 30/1m`"


class Act(NamedTuple):
    """An action, and what it is done to; `None`: anything. Of a command, `env` are the names it sets."""

    action: str
    resource: str | None = None
    program: str | None = None
    args: tuple[str, ...] | None = None
    env: frozenset[str] | None = None

    def covers(self, other: Act) -> bool:
        """Return whether the other is allowed wherever this is: it is narrower in each part, or equal."""
        return (
            prefix_covers(self.action, other.action)
            and (
                self.resource is None
                or (other.resource is not None and _resource_covers(self, other.resource))
            )
            and self.program in (None, other.program)
            and (self.args is None or (other.args is not None and _args_cover(self.args, other.args)))
            and (self.env is None or (other.env is not None and self.env >= other.env))
        )

    def __str__(self) -> str:
        return shlex.join(self._words())

    def _words(self) -> Iterator[str]:
        yield self.action
        if self.resource is not None:
            yield from (_preposition(self.action) or "on", self.resource)
        if self.program is not None:
            yield from ("program", self.program)
        if self.args is not None:
            yield from ("args", shlex.join(self.args))
        if self.env is not None:
            yield from ("env", ",".join(sorted(self.env)))


class RateLimit(NamedTuple):
    """A limit: this number of times within any period of this length."""

    times: int
    window_ms: int

    def covers(self, other: RateLimit) -> bool:
        """Return whether the other rate never allows more than this one."""
        periods = -(-self.window_ms // other.window_ms)  # of the other, within one of this
        return periods * other.times <= self.times

    def __str__(self) -> str:
        return f"{self.times}/{short_duration(self.window_ms)}"


class Capability(NamedTuple):
    """What a grant allows: an act, how often, how many unfinished ones, and whether approval is needed."""

    act: Act
    asks: bool = False
    rate: RateLimit | None = None
    open_items: int | None = None

    def covers(self, other: Capability) -> bool:
        """Return whether the other is narrower in each dimension, or equal."""
        return (
            self.act.covers(other.act)
            and self.asks <= other.asks
            and (self.rate is None or (other.rate is not None and self.rate.covers(other.rate)))
            and (
                self.open_items is None
                or (other.open_items is not None and other.open_items <= self.open_items)
            )
        )

    @property
    def is_limited(self) -> bool:
        """Return whether it has a rate, or a limit on open items."""
        return self.rate is not None or self.open_items is not None

    @property
    def terms(self) -> str:
        """Return the text without the leading `can` or `ask`."""
        rate = "" if self.rate is None else f" rate {self.rate}"
        return f"{self.act}{rate}" + ("" if self.open_items is None else f" open {self.open_items}")

    def __str__(self) -> str:
        return f"{ASK if self.asks else CAN} {self.terms}"

    @classmethod
    def parse(cls, text: str) -> Capability:
        """Return the capability that a line describes; raise `BadValue` if it is none."""
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise BadValue(f"{text!r} is no capability: {error}", hint=_HINT) from None
        asks = words[:1] == [ASK]
        if words[:1] in ([CAN], [ASK]):
            words = words[1:]
        if not words:
            raise BadValue(f"capability must name an action, got {text!r}", hint=_HINT)
        return cls._of_words(words[0], _options(words[1:], text), asks=asks)

    @classmethod
    def _of_words(cls, action: str, options: Mapping[str, str], *, asks: bool) -> Capability:
        preposition = _checked_action(action)
        allowed = {*_LIMITS, *((preposition,) if preposition else ())}
        if prefix_covers(action, EXECUTE) and action != EVERYTHING:
            allowed |= {"program", "args", "env"}
        if unknown := options.keys() - allowed:
            raise BadValue(f"{action} has no {', '.join(sorted(unknown))}", hint=_HINT)
        resource = options.get(preposition or "")
        args, env = options.get("args"), options.get("env")
        act = Act(
            action,
            None if resource is None else _checked_resource(action, resource),
            options.get("program") and checked_word("program", options["program"]),
            None if args is None else _checked_args(args),
            None if env is None else frozenset(filter(None, env.split(","))),
        )
        rate, open_items = options.get("rate"), options.get("open")
        return cls(
            act,
            asks,
            None if rate is None else _rate(rate),
            None if open_items is None else _count("open", open_items),
        )


def _options(words: Sequence[str], text: str) -> dict[str, str]:
    """Return the words after the action, by the word before each of them."""
    names, values = words[::2], words[1::2]
    if len(values) < len(names) or len(set(names)) < len(names):
        raise BadValue(
            f"{text!r} is no capability: after its action, each word once, with a value", hint=_HINT
        )
    return dict(zip(names, values, strict=True))


def _preposition(action: str) -> str | None:
    return None if action == EXECUTE else _PREPOSITIONS.get(action.partition(".")[0])


def _checked_action(action: str) -> str | None:
    """Return the word that stands before a resource of this action, or `None`; refuse unknown actions."""
    is_pattern = action == EVERYTHING or action.endswith(".*")
    if action not in ACTIONS and not (is_pattern and any(prefix_covers(action, each) for each in ACTIONS)):
        raise BadValue(f"action {action!r} not found", hint=f"one of {', '.join(ACTIONS)}, cron.* or *")
    return _preposition(action)


def _checked_resource(action: str, resource: str) -> str:
    area = action.partition(".")[0]
    if area == "lock":
        return normalise(resource)
    if area == "job":
        return check_pattern(resource)
    if area == "op":
        return checked_word("kind", resource)
    return resource if resource == EVERYONE else checked_word("recipient", resource)


def _checked_args(text: str) -> tuple[str, ...]:
    args = tuple(shlex.split(text))
    if _ANY_ARGS in args[:-1]:
        raise BadValue(f"args must have {_ANY_ARGS} at the end only, got {text!r}", hint=_HINT)
    return args


def _rate(text: str) -> RateLimit:
    times, slash, window = text.partition("/")
    try:
        window_ms = milliseconds(window) if slash else 0
    except ValueError as error:
        raise BadValue(f"rate {text!r}: {error}", hint="for example 30/1m") from None
    if not 0 < window_ms <= _MAX_WINDOW_MS:
        raise BadValue(f"rate must be a number per duration, got {text!r}", hint="for example 30/1m")
    return RateLimit(_count("rate", times), window_ms)


def _count(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and 0 < int(text) <= _MAX_COUNT):
        raise BadValue(f"{name} must be a whole number from 1 to {_MAX_COUNT}, got {text!r}", hint=_HINT)
    return int(text)


def _resource_covers(act: Act, other: str) -> bool:
    assert act.resource is not None
    is_lock = act.action.startswith("lock.")
    return (key_covers if is_lock else prefix_covers)(act.resource, other)


def _args_cover(wide: Sequence[str], narrow: Sequence[str]) -> bool:
    """Return whether each list of arguments that `narrow` describes is one of `wide`."""
    wide_rest, narrow_rest = wide[-1:] == (_ANY_ARGS,), narrow[-1:] == (_ANY_ARGS,)
    fixed = wide[:-1] if wide_rest else wide
    given = narrow[:-1] if narrow_rest else narrow
    if (narrow_rest and not wide_rest) or len(given) < len(fixed):
        return False
    return (wide_rest or len(given) == len(fixed)) and all(map(prefix_covers, fixed, given))
