"""Durations as people write them: `500ms`, `30s`, `5m`, `2h`, `30d`, ISO 8601, or integer seconds."""

from __future__ import annotations

import re
from typing import Final

from vox_mesh.errors import BadValue

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SHORT: Final = re.compile(r"(\d+)(ms|s|m|h|d)", re.ASCII)
_ISO: Final = re.compile(
    r"P(?:(?P<d>\d+)D)?(?:T(?=\d)(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+)(?:\.(?P<f>\d{1,3}))?S)?)?",
    re.ASCII,
)


def milliseconds(text: str | int) -> int:
    """Return the duration in milliseconds; raise `ValueError` if it is invalid."""
    written = str(text).strip()
    if isinstance(text, bool) or not written:
        raise ValueError(_allowed(written))
    if written.isascii() and written.isdigit():
        return int(written) * 1_000
    if short := _SHORT.fullmatch(written):
        return int(short[1]) * _UNITS_MS[short[2]]
    iso = _ISO.fullmatch(written)
    if iso is None or not any(iso.groupdict().values()):
        raise ValueError(_allowed(written))
    total = sum(int(iso[unit] or 0) * _UNITS_MS[unit] for unit in ("d", "h", "m", "s"))
    return total + int((iso["f"] or "0").ljust(3, "0"))


def _allowed(written: str) -> str:
    return f"{written!r} is not a duration (write 500ms, 30s, 5m, 2h, 30d, PT1M30S or whole seconds)"


def rough_duration(duration_ms: float) -> str:
    """Return a duration in its largest whole unit, such as `2 h`."""
    units = (("d", "d"), ("h", "h"), ("m", "min"), ("s", "s"))
    name, written = next((each for each in units if duration_ms >= _UNITS_MS[each[0]]), units[-1])
    return f"{max(0, int(duration_ms // _UNITS_MS[name]))} {written}"


def checked_seconds(name: str, value: object, least: float, most: float, *, hint: str) -> float:
    """Return the value if it is a number of seconds within these bounds.

    Raises:
        BadValue: It is not.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most:
        return value
    raise BadValue(f"{name} must be seconds between {least:g} and {most:g}, got {value!r}", hint=hint)
