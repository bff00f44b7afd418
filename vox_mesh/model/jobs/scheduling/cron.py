"""Cron schedules: five fields and a time zone, and the times they define."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from vox_mesh.errors import BadValue

NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS: Final = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31, L or LW, in a month that has such a day",
    "month": "1 to 12 or JAN to DEC",
    "day-of-week": "0 to 7, SUN to SAT, MON#2 for the second, 5L for the last Friday",
}
MAX_BARS: Final = 10_000
_IN_BARS: Final = re.compile(r"every (?:(\d{1,9}) bars?|bar)", re.ASCII)
_EXAMPLE: Final = "for example 0 8 * * MON-FRI: minute, hour, day of the month, month, day of the week"
_BARS_EXAMPLE: Final = "write every N bars, such as every 4 bars"
_MAX_CHARACTERS: Final = 200
_UTC_NAMES: Final = frozenset({"UTC", "Etc/UTC", "Z"})
_MACHINE_ZONES: Final = frozenset({"localtime", "posixrules"})  # differ between machines
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_REPEATED_HOURS_MS: Final = 2 * 3_600_000
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Cron:
    """A recurring schedule. Raises `BadValue` if the expression or time zone is invalid.

    At a daylight saving change, a fixed time of day occurs once; a schedule with `*` for its minutes or hours
    follows elapsed time.
    """

    expression: str
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        self.after(0)

    def after(self, time_ms: int) -> int:
        """Return the first scheduled time after this one, in ms."""
        return _first(self._times(time_ms), lambda each: each > time_ms, self.expression)

    def latest(self, time_ms: int) -> int:
        """Return the last scheduled time up to this one, in ms."""
        # A repeated time of day is returned only once in reverse: start before it and go forward.
        earlier = self._times(time_ms - _REPEATED_HOURS_MS, reverse=True)
        latest = _first(earlier, lambda each: each <= time_ms, self.expression)
        while (following := self.after(latest)) <= time_ms:
            latest = following
        return latest

    def _times(self, time_ms: int, *, reverse: bool = False) -> CronSim:
        start = (_EPOCH + time_ms * _MILLISECOND).astimezone(zone_named(self.timezone))
        if not reverse:
            start = start.replace(microsecond=0)
        return _parse(self.expression, start, reverse)


def bars_in(expression: str) -> int | None:
    """Return the bars in an expression such as `every 4 bars`; `None` if it is one of five fields."""
    found = _IN_BARS.fullmatch(expression)
    if found is None:
        return None
    bars = int(found[1] or 1)
    if not 1 <= bars <= MAX_BARS:
        raise BadValue(f"a schedule must be every 1 to {MAX_BARS} bars, got {bars}", hint=_BARS_EXAMPLE)
    return bars


def _first(times: CronSim, matches: Callable[[int], bool], expression: str) -> int:
    for time in times:
        time_ms = (time.astimezone(UTC) - _EPOCH) // _MILLISECOND
        if matches(time_ms):
            return time_ms
    raise BadValue(f"{expression!r} never comes", hint=_EXAMPLE)


def _parse(expression: str, start: datetime, reverse: bool) -> CronSim:
    text = NICKNAMES.get(expression.strip().lower(), expression)
    fields = text.split()
    if len(text) > _MAX_CHARACTERS:
        raise BadValue(f"a schedule of {len(text)} characters is too long", hint=f"up to {_MAX_CHARACTERS}")
    if text.lstrip().startswith("@"):
        raise BadValue(f"{expression!r} is no schedule", hint=f"these have names: {', '.join(NICKNAMES)}")
    if fields[:1] == ["every"]:
        raise BadValue(f"{expression!r} is no schedule", hint=_BARS_EXAMPLE)
    if len(fields) != len(_FIELDS):
        raise BadValue(
            f"{expression!r} is no schedule: it has {len(fields)} fields, not {len(_FIELDS)}", hint=_EXAMPLE
        )
    try:
        return CronSim(text, start, reverse)
    except CronSimError as error:
        name = str(error).removeprefix("Bad ")
        if name not in _FIELDS:
            raise BadValue(f"{expression!r} is no schedule: {error}", hint=_EXAMPLE) from None
        field = fields[list(_FIELDS).index(name)]
        raise BadValue(
            f"{expression!r} is no schedule: {field!r} is no {name.replace('-of-', ' of the ')}",
            hint=f"{_FIELDS[name]}; also with *, lists, ranges and steps such as 1,2 or 1-5 or */2",
        ) from None


@lru_cache(64)
def zone_named(name: str) -> tzinfo:
    """Return a time zone; UTC needs no time zone data. Raises `BadValue` if it is unknown."""
    if name in _UTC_NAMES:
        return UTC
    try:
        if name not in _MACHINE_ZONES:
            return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, not a file name, or a folder
        pass
    raise BadValue(
        f"{name!r} is no time zone that this machine knows",
        hint="for example Europe/Berlin; UTC is known everywhere, others may need the package tzdata",
    )


def iso(time_ms: int) -> str:
    """Return a time as ISO 8601 in UTC, in whole seconds."""
    return (_EPOCH + time_ms * _MILLISECOND).strftime("%Y-%m-%dT%H:%M:%SZ")
