"""Blocking proxies of async objects: coroutines become blocking calls, everything else is unchanged."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import cache, cached_property, partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from vox_mesh.errors import BadValue
from vox_mesh.runtime.services import MeshServices
from vox_mesh.sync.loop_thread import Call, Iteration, LoopThread

if TYPE_CHECKING:
    from vox_mesh.sync.typed_jobs import BlockingJobDecorator

T = TypeVar("T")

_PACKAGE: Final = "vox_mesh."


class Blocking:
    """A proxy of an object in the loop; `node` is the node it belongs to, if any."""

    __slots__ = ("_loop", "_node", "_target")

    _loop: LoopThread
    _target: Any
    _node: MeshServices | None

    def __init__(self, loop: LoopThread, target: Any, node: MeshServices | None) -> None:
        object.__setattr__(self, "_loop", loop)
        object.__setattr__(self, "_target", target)
        object.__setattr__(self, "_node", target if isinstance(target, MeshServices) else node)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self._target).__name__} has no public attribute {name!r}")
        value = self._create(name) if self._is_missing(name) else getattr(self._target, name)
        wrap = _blocking_function if inspect.isroutine(value) else _wrap
        return wrap(self._loop, value, self._node)

    def _is_missing(self, name: str) -> bool:
        """Return whether an attribute is a service that was not created yet."""
        declared = inspect.getattr_static(type(self._target), name, None)
        return isinstance(declared, cached_property) and name not in vars(self._target)

    def _create(self, name: str) -> Any:
        """Create a service in the loop: Ctrl-C in an import of this thread would leave its lock taken."""
        if not self._loop.is_usable:
            return getattr(self._target, name)

        async def read() -> Any:
            return getattr(self._target, name)

        return self._loop.run(read, self._node)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._target, name, value)

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._target) if not name.startswith("_")]

    def __repr__(self) -> str:
        return f"<{type(self._target).__name__}, blocking>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blocking) and self._target is other._target

    def __hash__(self) -> int:
        return id(self._target)


class BlockingMesh(Blocking):
    """A proxy of a mesh, whose typed jobs are blocking too."""

    __slots__ = ()

    def job(self, kind: str, **options: Any) -> BlockingJobDecorator:
        """Make a typed job of a function, as the async mesh does."""
        from vox_mesh.sync.typed_jobs import (
            BlockingJobDecorator,  # imported late: few scripts have typed jobs
        )

        return BlockingJobDecorator(self._target.job(kind, **options), partial(run_in_loop, self))


def run_in_loop(mesh: BlockingMesh, work: Callable[[], Awaitable[T]]) -> T:
    """Call an async function in the loop of a mesh, and wait for it."""
    loop, node = (object.__getattribute__(mesh, name) for name in ("_loop", "_node"))
    return cast(LoopThread, loop).run(work, node)


def _blocking_function(
    loop: LoopThread, function: Callable[..., Any], node: MeshServices | None
) -> Callable[..., Any]:
    """Return a function that runs in the loop, async or not: objects there are not thread-safe."""

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        async def work() -> Any:
            result = function(
                *map(unwrapped, args), **{name: unwrapped(each) for name, each in options.items()}
            )
            return await result if isinstance(result, Awaitable) else result

        return _wrap_result(loop, loop.run(work, node), node)

    return call


def unwrapped(value: Any) -> Any:
    """Return the object of the loop that a proxy stands for, or the value itself."""
    return object.__getattribute__(value, "_target") if isinstance(value, Blocking) else value


def _wrap_result(loop: LoopThread, value: Any, node: MeshServices | None) -> Any:
    """Wrap a returned value: a context manager becomes a `Block`, an async iterator a generator."""
    if isinstance(value, AbstractAsyncContextManager):
        return Block(loop, value, node)
    if hasattr(value, "__anext__"):
        return Iteration(loop, value, node, lambda item: _wrap_result(loop, item, node))
    return _wrap(loop, value, node)


def _wrap(loop: LoopThread, value: Any, node: MeshServices | None) -> Any:
    """Wrap a value if it is a service."""
    if not is_service(value):
        return value
    return (BlockingMesh if isinstance(value, MeshServices) else Blocking)(loop, value, node)


def is_service(value: object) -> bool:
    """Return whether a value is an object of this package that lives in the loop."""
    kind: Any = type(value)
    return lives_in_loop(kind)


@cache
def lives_in_loop(kind: type) -> bool:
    """Return whether a class is of this package and has coroutine methods."""
    members = [inspect.getattr_static(kind, name) for name in dir(kind)]
    return kind.__module__.startswith(_PACKAGE) and any(map(inspect.iscoroutinefunction, members))


class Block(AbstractContextManager[Any]):
    """An async context manager as a `with` block.

    A task in the loop stays inside it while the block runs. If it ends early, such as when a lock is lost,
    the thread's next call to this `node` raises the reason, or at the latest the end of the block does.
    """

    def __init__(
        self, loop: LoopThread, manager: AbstractAsyncContextManager[Any], node: MeshServices | None = None
    ) -> None:
        self._loop = loop
        self._manager = manager
        self._node = node
        self._entering = threading.Lock()
        self._entered: list[Any] = []
        self._call: Call | None = None
        self._among: list[Any] = []

    async def _inside(self) -> BaseException | None:
        """Stay inside until the block is left; return its exception, unless the manager handles it."""
        error: BaseException | None = None
        try:
            async with self._manager as value:
                self._left: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
                self._entered.append(value)
                if self._call is not None:
                    self._call.wake()
                error = await self._left
                if error is not None:
                    raise error
        except BaseException as raised:
            if raised is not error:
                raise
            return error  # not raised: a coroutine must not raise every exception that a block may
        return None

    def __enter__(self) -> Any:
        """Enter the context manager in the loop."""
        with self._entering:
            if self._call is not None:
                raise BadValue(
                    "block can be entered only once", hint="create another one, such as with `hold(...)`"
                )
            self._call = call = self._loop.call(self._inside, self._node)
        call.run(lambda: bool(self._entered))
        if not self._entered:
            call.result()
        self._among = self._loop.blocks
        self._among.append(self)
        (value,) = self._entered
        wrap = _wrap if is_service(value) else _wrap_result
        return wrap(self._loop, value, self._node)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Leave the context manager in the loop, with the exception of the block."""
        call = self._call
        assert call is not None
        if self in self._among:
            self._among.remove(self)  # the list is that of the entering thread, which may be another one
        is_over = call.is_over
        if is_over and error is not None:
            return False  # the exception of the block stands
        if not is_over:
            if self._loop.is_ours:
                self._loop.soon(lambda: self._leave(error))
            if not self._loop.is_usable:
                return False  # waiting is impossible in a fork, or in the loop itself (garbage collection)
            call.wait_for(limited=False)
        try:
            return call.result() is not error
        finally:
            if error is not None:
                error.__traceback__ = traceback  # without the frames of the loop

    def _leave(self, error: BaseException | None) -> None:
        if not self._left.done():
            self._left.set_result(error)

    def refuse_if_lost(self, node: object) -> None:
        """Raise the reason if the block has ended early, and belongs to this node."""
        call = self._call
        if call is not None and call.is_over and self._node in (None, node):
            call.result()
