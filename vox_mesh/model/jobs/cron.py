"""Cron schedules: five fields and a time zone, and the instants that they name."""

from __future__ import annotations

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
_EXAMPLE: Final = "for example 0 8 * * MON-FRI: minute, hour, day of the month, month, day of the week"
_MAX_CHARACTERS: Final = 200
_UTC_NAMES: Final = frozenset({"UTC", "Etc/UTC", "Z"})
_OF_THE_MACHINE: Final = frozenset({"localtime", "posixrules"})  # another zone on each machine
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TWICE_MS: Final = 2 * 3_600_000
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Cron:
    """When something is to be done again and again. `BadValue` tells what is wrong with it.

    Where clocks are put forward or back, a fixed time of day comes once; what has a `*` for its minutes or
    hours comes by the time that really passes.
    """

    expression: str
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        self.after(0)

    def after(self, time_ms: int) -> int:
        """The first time after this one."""
        return _first(self._times(time_ms), lambda found: found > time_ms, self.expression)

    def latest(self, time_ms: int) -> int:
        """The last time up to this one."""
        # Times of day that come twice are told only once, so it is found from before on.
        earlier = self._times(time_ms - _TWICE_MS, reverse=True)
        found = _first(earlier, lambda each: each <= time_ms, self.expression)
        while (following := self.after(found)) <= time_ms:
            found = following
        return found

    def _times(self, time_ms: int, *, reverse: bool = False) -> CronSim:
        start = (_EPOCH + time_ms * _MILLISECOND).astimezone(zone_named(self.timezone))
        if not reverse:
            start = start.replace(microsecond=0)
        return _parsed(self.expression, start, reverse)


def _first(times: CronSim, fits: Callable[[int], bool], expression: str) -> int:
    for found in times:
        found_ms = (found.astimezone(UTC) - _EPOCH) // _MILLISECOND
        if fits(found_ms):
            return found_ms
    raise BadValue(f"{expression!r} never comes", hint=_EXAMPLE)


def _parsed(expression: str, start: datetime, reverse: bool) -> CronSim:
    text = NICKNAMES.get(expression.strip().lower(), expression)
    fields = text.split()
    if len(text) > _MAX_CHARACTERS:
        raise BadValue(f"a schedule of {len(text)} characters is too long", hint=f"up to {_MAX_CHARACTERS}")
    if text.lstrip().startswith("@"):
        raise BadValue(f"{expression!r} is no schedule", hint=f"these have names: {', '.join(NICKNAMES)}")
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
    """A time zone; UTC is known also where the machine has no data of time zones."""
    if name in _UTC_NAMES:
        return UTC
    try:
        if name not in _OF_THE_MACHINE:
            return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # a folder of zones, or no file name at all, are the last two
        pass
    raise BadValue(
        f"{name!r} is no time zone that this machine knows",
        hint="for example Europe/Berlin; UTC is known everywhere, others may need the package tzdata",
    )


def iso(time_ms: int) -> str:
    """A time as it is written in UTC, in whole seconds."""
    return (_EPOCH + time_ms * _MILLISECOND).strftime("%Y-%m-%dT%H:%M:%SZ")
