"""Nodes of two versions at once: the older one goes on working, and what is new waits until all know it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from proof.checkers.incarnations import RECOVERY_S, Incarnation, incarnations_of
from proof.history import History
from proof.verdicts import Check

_KNOWN_FOR_S: Final = 6.0
"""A node may act on what it knew of the others for 5 seconds."""


def mixed_versions(history: History) -> Iterator[str | int]:
    """Judge each incarnation of a run with several builds."""
    builds = {note.data["name"]: note.data for note in history.notes("build")}
    if not builds:
        return
    runs = {
        (note.data["player"], note.data["life"]): builds[note.data["build"]]
        for note in history.notes("life.began")
    }
    incarnations = incarnations_of(history)
    yield from _older_ones_work(history, incarnations, runs)
    yield from _new_features_wait(history, incarnations, runs)


Runs = dict[tuple[str, int], dict[str, Any]]
"""The build of each incarnation, by the name of the node and the number."""


def _older_ones_work(history: History, incarnations: list[Incarnation], runs: Runs) -> Iterator[str | int]:
    """An older node that is up long enough while a newer one is, or after it has migrated, writes."""
    newest = max(build["schema_version"] for build in runs.values())
    migrated = min((each.up for each in incarnations if _schema_of(each, runs) == newest), default=math.inf)
    written = {(each.who, each.incarnation): each.ended for each in history.all_operations if each.is_ok}
    over = min((note.at for note in history.notes("over")), default=math.inf)
    begun = [each for each in incarnations if _schema_of(each, runs) < newest and each.began > migrated]
    yield len(begun)
    broken = [each for each in begun if each.how == "broke" and each.up == math.inf]
    if broken and all(each.up == math.inf for each in begun):
        yield f"{broken[0]} of the older version ended, and none came up after the newer one had migrated"
    for each in incarnations:
        since = max(each.up, migrated)
        if _schema_of(each, runs) == newest or min(each.ended, over) - since < RECOVERY_S:
            continue
        yield 1
        if written.get((each.node, each.number), -math.inf) < since:
            yield f"{each} of the older version did nothing after the newer one had migrated"


def _new_features_wait(history: History, incarnations: list[Incarnation], runs: Runs) -> Iterator[str | int]:
    """A node prunes only if every node that was up all the time knows pruning."""
    for operation in history.operations("pruning.pass"):
        known = runs[operation.who, operation.incarnation]["pruning_known"]
        if known is None or not operation.is_ok:
            continue
        yield 1
        if not operation.result["pruned"]:
            continue
        for each in incarnations:
            is_up = each.up + _KNOWN_FOR_S < operation.began and operation.ended < each.ended
            if is_up and _schema_of(each, runs) < known:
                yield (
                    f"{operation.who}.{operation.incarnation} pruned at {operation.began:.3f}, which "
                    f"{each} of schema version {_schema_of(each, runs)} does not know"
                )


def _schema_of(incarnation: Incarnation, runs: Runs) -> int:
    return int(runs[incarnation.node, incarnation.number]["schema_version"])


MIXED_VERSION_CHECKS: Final = (
    Check(
        "mixed-versions",
        "nodes of the older version go on working, and what is new waits until no node is too old for it",
        mixed_versions,
    ),
)
