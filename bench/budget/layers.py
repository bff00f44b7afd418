"""Attribute the processor time of the event loop's thread to layers of the code, by a profile."""

from __future__ import annotations

import cProfile
import pstats
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from time import thread_time
from typing import Final

_PACKAGE: Final = Path(__file__).resolve().parents[2] / "vox_mesh"
_FOLDERS: Final = {
    "store/write": "write path",
    "store/engines": "driver",
    "store": "store",
    "oplog": "op log",
    "nodes": "op log",
    "model": "rules",
}
"""The layer of a folder; of several, the first that fits. All other folders of the package are services."""

_BUILT_INS: Final = {
    "sqlite3.": "SQLite",
    "orjson": "JSON, hashes, signatures",
    "json": "JSON, hashes, signatures",
    "hash": "JSON, hashes, signatures",
    "blake3": "JSON, hashes, signatures",
    "digest": "JSON, hashes, signatures",
    "sign": "JSON, hashes, signatures",
    "verify": "JSON, hashes, signatures",
    "select": "event loop, threads",
    "poll": "event loop, threads",
    "_queue": "event loop, threads",
    "_thread": "event loop, threads",
    "socket": "event loop, threads",
    "_asyncio": "event loop, threads",
}
_SERVICES: Final = "services"
LOOP: Final = "event loop, threads"
_OTHER: Final = "libraries"
LAYERS: Final = (
    _SERVICES,
    "op log",
    "rules",
    "store",
    "write path",
    "driver",
    "JSON, hashes, signatures",
    "SQLite",
    LOOP,
    _OTHER,
)
"""From the caller down to the database."""

_EMPTY_CALLS: Final = 200_000

_Key = tuple[str, int, str]
_Stat = tuple[int, int, float, float, Mapping[_Key, tuple[int, int, float, float]]]


async def layers_of(run: Callable[[], Awaitable[object]], times: int) -> tuple[Mapping[str, float], float]:
    """Return the microseconds of each layer in one of `times` operations, and its calls of functions.

    The cost of profiling a call is measured, and subtracted.
    """
    profile = cProfile.Profile(thread_time)
    profile.enable()
    await run()
    profile.disable()
    stats = _stats(profile)
    spent = _seconds(stats, _cost_of_call())
    calls = sum(calls for _, calls, *_ in stats.values())
    return {layer: spent[layer] / times * 1e6 for layer in LAYERS}, calls / times


def _cost_of_call() -> float:
    """Return the seconds by which profiling lengthens a call."""

    def empty() -> None:
        pass

    def run() -> float:
        before = thread_time()
        for _ in range(_EMPTY_CALLS):
            empty()
        return thread_time() - before

    bare = run()
    profile = cProfile.Profile(thread_time)
    profile.enable()
    profiled = run()
    profile.disable()
    return (profiled - bare) / _EMPTY_CALLS


def _stats(profile: cProfile.Profile) -> Mapping[_Key, _Stat]:
    found: Mapping[_Key, _Stat] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    return found


def _seconds(stats: Mapping[_Key, _Stat], cost: float) -> Mapping[str, float]:
    spent: defaultdict[str, float] = defaultdict(float)
    for function, (_, calls, own, _, callers) in stats.items():
        layer = _layer(function)
        if layer is not None:
            spent[layer] += max(0.0, own - calls * cost)
            continue
        for caller, (_, part_calls, part, _) in callers.items():  # a built-in function belongs to its caller
            spent[_layer(caller) or _OTHER] += max(0.0, part - part_calls * cost)
    return spent


def _layer(function: _Key) -> str | None:
    """Return the layer of a function; `None` for one that belongs to its caller."""
    path, _, name = function
    if path == "~":
        return next((layer for part, layer in _BUILT_INS.items() if part in name), None)
    if not Path(path).is_relative_to(_PACKAGE):
        return LOOP if "asyncio" in path or "uvloop" in path else _OTHER
    inner = Path(path).relative_to(_PACKAGE).as_posix()
    return next((layer for folder, layer in _FOLDERS.items() if inner.startswith(f"{folder}/")), _SERVICES)
