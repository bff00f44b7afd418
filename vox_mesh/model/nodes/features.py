"""Features that nodes of an earlier version would misread: each waits until all live nodes know it."""

from __future__ import annotations

from typing import Final, NamedTuple

CRONS_SIGNED: Final = 13
"""The schema version since which nodes know crons by their ops."""

PRUNING_KNOWN: Final = 43
"""The schema version since which code takes pruned jobs for pruned."""

SPARING_NODES: Final = 46
"""The schema version since which nodes know that a heartbeat may take longer than a tick."""


class Feature(NamedTuple):
    """A feature, and the schema version since which nodes know it."""

    name: str
    version: int


FEATURES: Final = (
    Feature("signed crons", CRONS_SIGNED),
    Feature("retention", PRUNING_KNOWN),
    Feature("sparing heartbeats", SPARING_NODES),
)


def waiting_features(oldest_version: int) -> list[str]:
    """Return the features that wait while a live node knows no newer schema version than this."""
    return [each.name for each in FEATURES if each.version > oldest_version]
