"""Anything async, as plain code sees it: what has to be awaited blocks, and all else is as it was."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, closing
from functools import cache, wraps
from types import TracebackType
from typing import Any, Final

from vox_mesh.errors import BadValue
from vox_mesh.runtime.services import MeshServices
from vox_mesh.sync.loop_thread import Call, LoopThread

_PACKAGE: Final = "vox_mesh."


class Blocking:
    """Stands for an object that lives in the loop; `node` is the one that it is a part of, if any."""

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
            raise AttributeError(f"{type(self._target).__name__} keeps {name!r} to itself")
        value = getattr(self._target, name)
        seen = _calling if inspect.isroutine(value) else _as_seen
        return seen(self._loop, value, self._node)

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


def _calling(loop: LoopThread, function: Callable[..., Any], node: MeshServices | None) -> Callable[..., Any]:
    """The function, called in the loop whether it is async or not: nothing there expects other threads."""

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        async def work() -> Any:
            result = function(*map(_bare, args), **{name: _bare(each) for name, each in options.items()})
            return await result if isinstance(result, Awaitable) else result

        return _as_given(loop, loop.run(work, node), node)

    return call


def _bare(value: Any) -> Any:
    return object.__getattribute__(value, "_target") if isinstance(value, Blocking) else value


def _as_given(loop: LoopThread, value: Any, node: MeshServices | None) -> Any:
    """What a function has returned, as the outside may use it: what can be entered is a block."""
    if isinstance(value, AbstractAsyncContextManager):
        return Block(loop, value, node)
    if hasattr(value, "__anext__"):
        return _each(loop, value, node)
    return _as_seen(loop, value, node)


def _each(loop: LoopThread, items: Any, node: MeshServices | None) -> Generator[Any, None, None]:
    with closing(loop.iterate(items, node)) as blocking:
        for item in blocking:
            yield _as_given(loop, item, node)


def _as_seen(loop: LoopThread, value: Any, node: MeshServices | None) -> Any:
    """What an object of the loop has, as the outside may use it."""
    return Blocking(loop, value, node) if is_service(value) else value


def is_service(value: object) -> bool:
    """Whether it is an object of ours that lives in the loop."""
    kind: Any = type(value)
    return lives_in_loop(kind)


@cache
def lives_in_loop(kind: type) -> bool:
    """Whether it is one of our own classes, with something to await."""
    members = [inspect.getattr_static(kind, name) for name in dir(kind)]
    return kind.__module__.startswith(_PACKAGE) and any(map(inspect.iscoroutinefunction, members))


class Block(AbstractContextManager[Any]):
    """An async context manager as a `with` block.

    A task of its own is inside for as long as the block runs. Should that be ended from within, as when a
    lock is lost, the thread's next call to this `node` raises why, or at the latest the end of the block.
    """

    def __init__(
        self, loop: LoopThread, manager: AbstractAsyncContextManager[Any], node: MeshServices | None = None
    ) -> None:
        self._loop = loop
        self._manager = manager
        self._node = node
        self._entering = threading.Lock()
        self._entered: Future[Any] = Future()
        self._call: Call | None = None
        self._among: list[Any] = []

    async def _inside(self) -> BaseException | None:
        """Be inside until the block is left; what that ended in, unless it ends here."""
        error: BaseException | None = None
        try:
            async with self._manager as value:
                self._left: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
                self._entered.set_result(value)
                error = await self._left
                if error is not None:
                    raise error
        except BaseException as raised:
            if raised is not error:
                raise
            return error  # not raised: a coroutine may not end in whatever a block may
        return None

    def __enter__(self) -> Any:
        """Enter, in the loop."""
        with self._entering:
            if self._call is not None:
                raise BadValue("a block is entered once", hint="ask for another one, as with `hold(...)`")
            self._call = call = self._loop.call(self._inside, self._node)
        call.run(self._entered)
        if not self._entered.done():
            call.result()
        self._among = self._loop.blocks
        self._among.append(self)
        value = self._entered.result()
        seen = _as_seen if is_service(value) else _as_given
        return seen(self._loop, value, self._node)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Leave, in the loop, with whatever the block ended in."""
        call = self._call
        assert call is not None
        if self in self._among:
            self._among.remove(self)  # of the thread that entered, which need not be the one that leaves
        is_over = call.ended.done()
        if is_over and error is not None:
            return False  # what the block has come to stands
        if not is_over:
            if self._loop.is_ours:
                self._loop.soon(lambda: self._leave(error))
            if not self._loop.is_usable:
                return False  # a fork; or the loop itself, as in a garbage collection: nobody can wait
            call.wait_for(limited=False)
        try:
            return call.result() is not error
        finally:
            if error is not None:
                error.__traceback__ = traceback  # without the way that it took through the loop

    def _leave(self, error: BaseException | None) -> None:
        if not self._left.done():
            self._left.set_result(error)

    def refuse_if_lost(self, node: object) -> None:
        """Raise why the block is over, if it is, and if it concerns who calls this node."""
        call = self._call
        if call is not None and call.ended.done() and self._node in (None, node):
            call.result()
