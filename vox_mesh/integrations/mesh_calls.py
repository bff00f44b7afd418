"""Calls of a mesh from where a framework runs its code: the mesh's event loop, another one, or a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from vox_mesh.errors import WrongThread
from vox_mesh.jobs.worker.running_loop import running_loop
from vox_mesh.mesh import Mesh
from vox_mesh.sync.blocking import BlockingMesh, run_in_loop, unwrapped

if TYPE_CHECKING:
    from vox_mesh.sync import Mesh as SyncMesh

T = TypeVar("T")

_TIMEOUT_S: Final = 120.0
"""For a blocking call. Every write and read of the mesh has a shorter deadline of its own."""

_END: Final = object()


class MeshCalls:
    """Runs coroutines in the event loop of a mesh: of the running one, or of a mesh of `vox_mesh.sync`."""

    def __init__(self, mesh: Mesh | SyncMesh) -> None:
        blocking = cast(Any, mesh)
        self._blocking: BlockingMesh | None = blocking if isinstance(blocking, BlockingMesh) else None
        self.mesh: Final[Mesh] = unwrapped(mesh)
        self._loop = None if self._blocking is not None else running_loop()
        if self._blocking is None and self._loop is None:
            raise WrongThread(
                "the event loop of the mesh does not run in this thread",
                hint="create it inside `async with Mesh.open():`, or pass a mesh of `vox_mesh.sync`",
            )

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what a coroutine of the mesh returns, from any event loop."""
        if self._loop is running_loop():
            return await work()
        return await asyncio.to_thread(self.wait, work)

    def wait(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what a coroutine of the mesh returns, from a thread without an event loop."""
        if self._blocking is not None:
            return run_in_loop(self._blocking, work)
        assert self._loop is not None, "a mesh that is not blocking has one"
        if self._loop is running_loop():
            raise WrongThread(
                "blocking call in the thread of the event loop: it would stop the loop",
                hint="await the async method, or call it from a thread",
            )
        running = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return running.result(_TIMEOUT_S)
        except BaseException:
            running.cancel()
            raise

    async def each(self, items: AsyncIterator[T]) -> AsyncGenerator[T, None]:
        """Yield what an async generator of the mesh yields, from any event loop."""
        try:
            while (item := await self.run(partial(_next, items))) is not _END:
                yield cast(T, item)
        finally:
            await self.run(partial(_close, items))

    def wait_each(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Yield what an async generator of the mesh yields, from a thread without an event loop."""
        try:
            while (item := self.wait(partial(_next, items))) is not _END:
                yield cast(T, item)
        finally:
            self.wait(partial(_close, items))


async def _next(items: AsyncIterator[T]) -> T | object:
    return await anext(items, _END)


async def _close(items: AsyncIterator[Any]) -> None:
    if hasattr(items, "aclose"):
        await items.aclose()
