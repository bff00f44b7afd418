"""Durations as people write them: `500ms`, `30s`, `1.5h`, `30d`, ISO 8601, seconds, or a `timedelta`."""

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
_ISO: Final = re.compile(
    r"P(?:(?P<d>\d+)D)?(?:T(?=\d)(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+)(?:\.(?P<f>\d{1,3}))?S)?)?",
    re.ASCII,
)


def milliseconds(value: Duration) -> int:
    """Return the duration in milliseconds, rounded; raise `ValueError` if it is invalid."""
    if isinstance(value, timedelta):
        if value < timedelta():
            raise ValueError(_allowed(str(value)))
        return round(value / _MILLISECOND)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 <= value <= _MAX_S:
            raise ValueError(_allowed(str(value)))
        return round(value * 1_000)
    written = str(value).strip()
    if isinstance(value, bool) or not written:
        raise ValueError(_allowed(written))
    if short := _SHORT.fullmatch(written):
        number, unit_ms = short[1], _UNITS_MS[short[2] or "s"]
        return int(number) * unit_ms if number.isdigit() else round(float(number) * unit_ms)
    iso = _ISO.fullmatch(written)
    if iso is None or not any(iso.groupdict().values()):
        raise ValueError(_allowed(written))
    total = sum(int(iso[unit] or 0) * _UNITS_MS[unit] for unit in ("d", "h", "m", "s"))
    return total + int((iso["f"] or "0").ljust(3, "0"))


def _allowed(written: str) -> str:
    return f"{written!r} is not a duration (write 500ms, 30s, 5m, 2h, 30d, PT1M30S or seconds)"


def rough_duration(duration_ms: float) -> str:
    """Return a duration in its largest whole unit, such as `2 h`."""
    units = (("d", "d"), ("h", "h"), ("m", "min"), ("s", "s"))
    name, written = next((each for each in units if duration_ms >= _UNITS_MS[each[0]]), units[-1])
    return f"{max(0, int(duration_ms // _UNITS_MS[name]))} {written}"


def checked_seconds(name: str, value: object, least: float, most: float, *, hint: str) -> float:
    """Return a duration in seconds, if it is within these bounds.

    Raises:
        BadValue: It is not a duration, or out of bounds.
    """
    found = _seconds(value)
    if found is not None and least <= found <= most:
        return found
    raise BadValue(f"{name} must be seconds between {least:g} and {most:g}, got {value!r}", hint=hint)


def seconds_of(name: str, value: Duration) -> float:
    """Return a duration in seconds; raise `BadValue` if it is none."""
    found = _seconds(value)
    if found is None:
        raise BadValue(f"{name} must be a duration such as 30s, 1.5h or a number of seconds, got {value!r}")
    return found


def _seconds(value: object) -> float | None:
    """Return the seconds of a duration, a number unchanged; `None` if it is not a duration."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if not isinstance(value, str | timedelta):
        return None
    try:
        return milliseconds(value) / 1_000
    except ValueError:
        return None
