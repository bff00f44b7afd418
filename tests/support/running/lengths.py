"""How long the long runs are: short in every test run, at full length with `VOX_SOAK=1`."""

from __future__ import annotations

import os
from typing import Any, Final, TypeVar

import pytest

from tools.homes import FILE, MEMORY, MESH, MESH_HTTP, MESH_LIBSQL_CLIENT, MESH_REPLICA

SOAK: Final = os.environ.get("VOX_SOAK") == "1"

T = TypeVar("T")

only_at_full_length: Final = pytest.mark.skipif(not SOAK, reason="takes too long for every test run")
"""For tests marked `soak`."""


def in_soak(*cases: T) -> tuple[T, ...]:
    """These cases only at full length, in tests marked `soak`: others show the same by the same code."""
    return cases if SOAK else ()


def cases_in_soak(*cases: Any) -> tuple[Any, ...]:
    """The same where nothing else of a test is longer, and for fixtures: the case makes it one of `soak`."""
    return tuple(pytest.param(case, marks=pytest.mark.soak) for case in cases) if SOAK else ()


EVERY_HOME: Final = (MEMORY, FILE, MESH_REPLICA, *cases_in_soak(MESH, MESH_HTTP, MESH_LIBSQL_CLIENT))
"""For what stands on the store: that all ways to a server do alike is what the store's own tests show."""

SCRIPTS_PER_PROCESS: Final = 500 if SOAK else 60
SLOW_SCRIPTS_PER_PROCESS: Final = 100 if SOAK else 15
"""For the driver that makes a round trip of every statement."""

SERVER_KILLS: Final = 20 if SOAK else 2
LOST_ANSWERS: Final = 20 if SOAK else 2
SPOILED_STREAM: Final = 40 if SOAK else 3
"""Faults that a proxy puts into a stream of concurrent writes."""

LOAD_S: Final = 60.0 if SOAK else 3.0
SHORTER_LOAD_S: Final = 20.0 if SOAK else 3.0
CHECKPOINT_INTERVAL_S: Final = 20 if SOAK else 3

BACKUPS: Final = 3 if SOAK else 1
"""Backups made while others write."""

SPOOLED: Final = 1_000
REPLAY_KILLS: Final = 6 if SOAK else 2
REPLAYED: Final = 512 * (REPLAY_KILLS + 1)
"""Enough that something is left after every kill."""

WRITER_KILLS: Final = 20 if SOAK else 2

REPLICA_ROUNDS: Final = 3 if SOAK else 1
"""Times that a replica is compared with its primary, each after a stretch of faults."""

REPLICA_FAULTS: Final = 4 if SOAK else 1
"""Faults in such a stretch."""

HISTORY_FAULTS: Final = 18 if SOAK else 2
MOVING_S: Final = 30.0 if SOAK else 2.0

IDLE_S: Final = 60.0 if SOAK else 4.0
"""For how long a watching node is counted doing nothing."""

RACES: Final = 200 if SOAK else 3
"""Times that the same ones race for a lock."""

LOCK_FAULTS: Final = 40 if SOAK else 3
"""Holders paused, servers killed and answers lost, in one history of locks."""

WANTING_S: Final = 30.0 if SOAK else 2.0
"""For how long many agents want the same few keys."""

PATTERN_RACES: Final = 300 if SOAK else 15
"""Rounds in which two nodes want keys that overlap."""

LOCK_WALKS: Final = 200 if SOAK else 10
"""Walks of agents over locks that are compared with what the rules say."""

MESSAGE_WALKS: Final = 500 if SOAK else 10
"""Walks of senders and consumers over a few inboxes that are compared with what the rules say."""

JOB_WALKS: Final = 500 if SOAK else 10
"""Walks of nodes over a handful of jobs that are compared with what the rules say."""

NODE_ROUNDS: Final = 30 if SOAK else 1
"""Rounds in which nodes under load are ended and begun again in turn."""
