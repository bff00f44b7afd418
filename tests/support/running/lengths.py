"""How long the long runs are: short in every test run, at full length with `VOX_SOAK=1`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final, TypeVar
from zlib import crc32

import pytest

from tools.homes import FILE, MEMORY, MESH, MESH_HTTP, MESH_LIBSQL_CLIENT, MESH_REPLICA, HomeCase
from tools.seeds import seed_of_run

SOAK: Final = os.environ.get("VOX_SOAK") == "1"

T = TypeVar("T")

only_at_full_length: Final = pytest.mark.skipif(not SOAK, reason="takes too long for every test run")
"""For tests marked `soak`."""


def in_soak(*cases: T) -> tuple[T, ...]:
    """These cases only at full length, in tests marked `soak`: others show the same by the same code."""
    return cases if SOAK else ()


def a_third(cases: Sequence[T]) -> tuple[T, ...]:
    """A third of many like cases, drawn by the seed of the run, and at full length all of them."""
    return tuple(cases if SOAK else cases[seed_of_run() % 3 :: 3])


def cases_in_soak(*cases: Any) -> tuple[Any, ...]:
    """The same where nothing else of a test is longer, and for fixtures: the case makes it one of `soak`."""
    return tuple(pytest.param(case, marks=pytest.mark.soak) for case in cases) if SOAK else ()


def in_turn(*homes: HomeCase) -> tuple[Any, ...]:
    """These homes in turn: each test runs on one of them, by its name, and at full length on all of them.

    For what stands on the store: that all homes do alike is what the store's own tests show. A test that says
    something only on some of them is marked `every_home`.
    """
    return tuple(
        pytest.param(home, marks=pytest.mark.home(str(home), index, len(homes)))
        for index, home in enumerate(homes)
    )


def a_third_of_tests(home: HomeCase) -> Any:
    """This home for a third of the tests, chosen by their names, and at full length for all of them."""
    return pytest.param(home, marks=pytest.mark.home(str(home), 0, 3))


def has_its_turn(item: pytest.Item) -> bool:
    """Return whether a test is to run on the home that it is given."""
    marks = [] if SOAK or item.get_closest_marker("every_home") else [*item.iter_markers("home")]
    return all(
        crc32(item.nodeid.replace(home, "").encode()) % count == index
        for home, index, count in (mark.args for mark in marks)
    )


LOCAL_AND_REPLICA: Final = in_turn(MEMORY, FILE, MESH_REPLICA)
EVERY_HOME: Final = (*LOCAL_AND_REPLICA, *cases_in_soak(MESH, MESH_HTTP, MESH_LIBSQL_CLIENT))
SHARED_HOMES: Final = in_turn(FILE, MESH_REPLICA)
"""The homes that several processes share; the ways to a server make no difference to who may what."""

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

CHILDREN: Final = 1_000 if SOAK else 30
"""Jobs for whose ends one job waits at a time."""

NODE_ROUNDS: Final = 30 if SOAK else 1
"""Rounds in which nodes under load are ended and begun again in turn."""

MIGRATED_ENTRIES: Final = int(os.environ.get("VOX_MIGRATED_ENTRIES", 800_000 if SOAK else 10_000))
"""Entries of the log that a large database has when it is migrated: 1.5 KB each, with their indexes."""
