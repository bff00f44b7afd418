"""The interface of a peer: it enqueues jobs that do nothing, and runs them."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar


class Done(NamedTuple):
    """How many jobs a worker has done, from when it could until when it did the last."""

    jobs: int
    began_ns: int
    last_ns: int


class PeerQueue(Protocol):
    """A peer's queue, open in one process."""

    async def put(self, count: int, at_once: int) -> None:
        """Enqueue this many, `at_once` in a call; they are durable when this returns."""

    async def work(self) -> Done:
        """Take and complete jobs until none is left."""


Serving = Callable[[Path], AbstractContextManager[str]]
"""Starts the storage of a queue, in a folder; yields its address."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Service(Generic[T]):
    """What keeps locks, messages or jobs: another service, or ours. `open` connects to the address."""

    name: str
    title: str
    package: str
    serve: Serving
    open: Callable[[str], AbstractAsyncContextManager[T]]
    lacks_server: Callable[[], str] = str

    def why_not(self) -> str:
        """Why it can't be measured here; empty if it can."""
        return _lacks_package(self.package) or self.lacks_server()


@dataclass(frozen=True, slots=True)
class Peer:
    """Another queue. `keeps`: what is on the disk when a call returns; `killed`: what becomes of a job
    whose worker is killed."""

    name: str
    title: str
    package: str
    keeps: str
    killed: str
    serve: Serving
    open: Callable[[str], AbstractAsyncContextManager[PeerQueue]]
    jobs_each_second: int
    at_once: int = 1
    workers: tuple[int, ...] = (1, 4)
    lacks_server: Callable[[], str] = str
    on_server: bool = False

    def why_not(self) -> str:
        """Why it can't be measured here; empty if it can."""
        return _lacks_package(self.package) or self.lacks_server()

    @property
    def version(self) -> str:
        """That of its Python package."""
        return importlib.metadata.version(self.package)


def _lacks_package(package: str) -> str:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return f"the Python package {package} is not installed"
    return ""


class Tally:
    """Counts what a worker does, and notes when."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """From now on, and from nothing."""
        self._jobs = 0
        self._began_ns = self._last_ns = time.monotonic_ns()

    def count(self, jobs: int = 1) -> None:
        """Count this many completed jobs."""
        self._jobs += jobs
        self._last_ns = time.monotonic_ns()

    def done(self) -> Done:
        """What came of it."""
        return Done(self._jobs, self._began_ns, self._last_ns)


def do_nothing() -> None:
    """The job."""
