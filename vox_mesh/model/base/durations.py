"""Durations as people write them: `500ms`, `30s`, `1.5h`, `1h30m`, ISO 8601, seconds, or a `timedelta`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from vox_mesh.errors import BadValue

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SHORT: Final = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)(ms|s|m|h|d)?", re.ASCII)
_MAX_S: Final = 10**15
_MILLISECOND: Final = timedelta(milliseconds=1)

Duration = float | str | timedelta
"""A duration: a number of seconds, a text such as `30s`, or a `timedelta`."""
_COMBINED: Final = re.compile(
    r"(?:(?P<d>\d{1,9})d ?)?(?:(?P<h>\d{1,9})h ?)?(?:(?P<m>\d{1,9})m(?!s) ?)?"
    r"(?:(?P<s>\d{1,9})s ?)?(?:(?P<ms>\d{1,9})ms)?",
    re.ASCII,
)
_ISO: Final = re.compile(
    r"P(?:(?P<d>\d{1,15})D)?"
    r"(?:T(?=\d)(?:(?P<h>\d{1,15})H)?(?:(?P<m>\d{1,15})M)?(?:(?P<s>\d{1,15})(?:\.(?P<ms>\d{1,3}))?S)?)?",
    re.ASCII,
)
_MAX_SHOWN: Final = 50


def milliseconds(value: object) -> int:
    """Return the duration in milliseconds, rounded; raise `ValueError` if it is invalid."""
    if isinstance(value, timedelta) and value >= timedelta():
        return round(value / _MILLISECOND)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MAX_S:
        return round(value * 1_000)
    found = _parse(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError(_fault(value))
    return found


def _parse(written: str) -> int | None:
    if short := _SHORT.fullmatch(written):
        number, unit_ms = short[1], _UNITS_MS[short[2] or "s"]
        return int(number) * unit_ms if number.isdigit() else round(float(number) * unit_ms)
    if iso := _ISO.fullmatch(written):
        parts = {**iso.groupdict(), "ms": iso["ms"] and iso["ms"].ljust(3, "0")}
    elif combined := _COMBINED.fullmatch(written):
        parts = combined.groupdict()
    else:
        return None
    given = [int(number) * _UNITS_MS[unit] for unit, number in parts.items() if number]
    return sum(given) if given else None


def _fault(value: object) -> str:
    written = str(value) if isinstance(value, timedelta) else repr(value)
    if len(written) > _MAX_SHOWN:
        written = f"{written[:_MAX_SHOWN]}..."
    return f"{written} is not a duration (write 90, 90s, 5m, 1h30m, 30d, 500ms or PT1M30S)"


def rough_duration(duration_ms: float) -> str:
    """Return a duration in its largest whole unit, such as `2 h`."""
    units = (("d", "d"), ("h", "h"), ("m", "min"), ("s", "s"))
    name, written = next((each for each in units if duration_ms >= _UNITS_MS[each[0]]), units[-1])
    return f"{max(0, int(duration_ms // _UNITS_MS[name]))} {written}"


def short_duration(duration_ms: int) -> str:
    """Return a duration as it can be written, such as `1h30m`."""
    parts: list[str] = []
    for unit, unit_ms in reversed(_UNITS_MS.items()):
        count, duration_ms = divmod(duration_ms, unit_ms)
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts) or "0s"


def checked_seconds(name: str, value: object, least: float, most: float, *, hint: str) -> float:
    """Return a duration in seconds, if it is within these bounds.

    Raises:
        BadValue: It is not a duration, or out of bounds.
    """
    found = seconds_of(name, value)
    if least <= found <= most:
        return found
    raise BadValue(f"{name} must be seconds between {least:.12g} and {most:.12g}, got {value!r}", hint=hint)


def seconds_of(name: str, value: object) -> float:
    """Return a duration in seconds, a number unchanged; raise `BadValue` if it is not a duration."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if isinstance(value, timedelta):
        return value.total_seconds()
    try:
        return milliseconds(value) / 1_000
    except ValueError as error:
        raise BadValue(f"{name}: {error}") from None


def seconds_or_none(name: str, value: Duration | None) -> float | None:
    """Return a duration in seconds, or `None` if there is none; raise `BadValue` if it is not a duration."""
    return None if value is None else seconds_of(name, value)
