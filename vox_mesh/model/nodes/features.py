"""Features that nodes of an earlier version would misread: each waits until all live nodes know it."""

from __future__ import annotations

from typing import Final, NamedTuple

CRONS_SIGNED: Final = 13
"""The schema version since which nodes know crons by their ops."""

PRUNING_KNOWN: Final = 43
"""The schema version since which code takes pruned jobs for pruned."""

SPARING_NODES: Final = 46
"""The schema version since which nodes know that a heartbeat may take longer than a tick."""

CHILDREN_KNOWN: Final = 47
"""The schema version since which nodes know jobs that wait for jobs which their steps have scheduled."""

DELETIONS_KNOWN: Final = 49
"""The schema version since which nodes know that archived entries of the log may be deleted."""

ARTIFACTS_KNOWN: Final = 50
"""The schema version since which nodes note the use of artifacts, and know that they may be removed."""


CLEANUPS_KNOWN: Final = 55
"""The schema version since which nodes know jobs that begin with the steps of others."""

BRIEF_PROOFS: Final = 56
"""The schema version since which nodes read proofs that do not repeat what their op has elsewhere."""

EARLY_WAKES: Final = 57
"""The schema version since which nodes know suspended jobs that were woken early."""

SHARED_SIGNATURES: Final = 58
"""The schema version since which nodes believe steps that share their signature with others."""


class Feature(NamedTuple):
    """A feature, and the schema version since which nodes know it."""

    name: str
    version: int


FEATURES: Final = (
    Feature("signed crons", CRONS_SIGNED),
    Feature("retention", PRUNING_KNOWN),
    Feature("sparing heartbeats", SPARING_NODES),
    Feature("steps that wait for jobs", CHILDREN_KNOWN),
    Feature("deletion of archived entries", DELETIONS_KNOWN),
    Feature("retention of artifacts", ARTIFACTS_KNOWN),
    Feature("forks and compensations", CLEANUPS_KNOWN),
    Feature("brief proofs", BRIEF_PROOFS),
    Feature("waking suspended jobs early", EARLY_WAKES),
    Feature("shared signatures of steps", SHARED_SIGNATURES),
)


def waiting_features(oldest_version: int) -> list[str]:
    """Return the features that wait while a live node knows no newer schema version than this."""
    return [each.name for each in FEATURES if each.version > oldest_version]
