"""LangGraph: a checkpoint saver that keeps the threads of graphs in the mesh."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from vox_mesh.errors import BadSettings, BadValue, TooLarge
from vox_mesh.integrations.mesh_calls import MeshCalls
from vox_mesh.model.base.durations import Duration, seconds_or_none
from vox_mesh.store.rows import Row, Value
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Answer, Script, Statement
from vox_mesh.store.store import Store

try:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        WRITES_IDX_MAP,
        BaseCheckpointSaver,
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
        PendingWrite,
        get_checkpoint_id,
        get_checkpoint_metadata,
    )
    from langgraph.checkpoint.serde.base import SerializerProtocol
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
except ModuleNotFoundError as missing:
    raise BadSettings("LangGraph is not installed", hint="pip install 'vox-mesh[langgraph]'") from missing

if TYPE_CHECKING:
    from vox_mesh.mesh import Mesh
    from vox_mesh.sync import Mesh as SyncMesh

_SQL: Final = named("conversations")
_CHANGED: Final = Answer(_SQL["changed"], columns=("changed",))
_KIND: Final = "graph"
_MAX_NAME: Final = 2_048
_MAX_METADATA: Final = 64 * 2**10
_MAX_VALUE: Final = 6 * 2**20
"""A checkpoint, or one value that a task has written, in bytes: servers limit their answers."""

_PAGE: Final = 50
_WRITES: Final = 500
_BATCH: Final = 200
"""The checkpoints that are removed in one write."""

_MAX_COPIED: Final = 10_000
_TOO_LARGE: Final = "too_large"

Writes = list[PendingWrite]
Statements = list[Statement]


def safe_serializer() -> JsonPlusSerializer:
    """Return LangGraph's serializer, which creates only the types on its list of safe ones."""
    return JsonPlusSerializer(allowed_msgpack_modules=None)


class MeshCheckpointSaver(BaseCheckpointSaver[int]):
    """Keeps the checkpoints of graphs in a mesh: `builder.compile(checkpointer=MeshCheckpointSaver(mesh))`.

    Both the async and the blocking methods work, in any event loop and any thread but that of the mesh.
    """

    def __init__(
        self,
        mesh: Mesh | SyncMesh,
        *,
        ttl: Duration | None = "90d",
        fence: Callable[[], Statement] | None = None,
        serde: SerializerProtocol | None = None,
    ) -> None:
        """A thread expires `ttl` after its last write; `None`: never.

        `fence` guards each write, such as `context.fence` of a job: a worker that has lost its claim writes
        nothing. Without `serde`, only types on LangGraph's list of safe ones are restored as such: others are
        returned as plain data. The bytes come from the database, and restoring a type calls its code.
        """
        super().__init__(serde=serde or safe_serializer())
        self._calls = MeshCalls(mesh)
        ttl_s = seconds_or_none("ttl", ttl)
        self._ttl_ms = None if ttl_s is None else round(ttl_s * 1_000)
        self._fence = fence

    # --- reading ---------------------------------------------------------------------------------

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that `config` names, or else the latest one of its thread."""
        place = _GraphPlace.of(config)
        return await self._calls.run(partial(self._find, place, get_checkpoint_id(config)))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return what `aget_tuple` does."""
        place = _GraphPlace.of(config)
        return self._calls.wait(partial(self._find, place, get_checkpoint_id(config)))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, the newest first: of one thread and namespace, or of all."""
        async with aclosing(self._calls.each(self._list(config, filter, before, limit))) as found:
            async for each in found:
                yield each

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield what `alist` does."""
        return self._calls.wait_each(self._list(config, filter, before, limit))

    async def _find(self, place: _GraphPlace, checkpoint_id: str | None) -> CheckpointTuple | None:
        # From the database itself: a node that goes on with a thread needs what another has just written.
        rows = await self._store.read(
            _SQL["checkpoint"], (*self._values(*place), checkpoint_id or None), fresh=True
        )
        if not rows:
            return None
        row = rows[0]
        checkpoint_id, parent_id = row["checkpoint_id"], row["parent_id"]
        return CheckpointTuple(
            config=place.config(checkpoint_id),
            checkpoint=self.serde.loads_typed((row["type"], row["checkpoint"])),
            metadata=json.loads(row["metadata"]),
            parent_config=None if parent_id is None else place.config(parent_id),
            pending_writes=await self._writes(place, checkpoint_id),
        )

    async def _writes(self, place: _GraphPlace, checkpoint_id: str) -> Writes:
        found: Writes = []
        count = _WRITES
        while True:
            values = (*self._values(*place), checkpoint_id, count, len(found))
            try:
                rows = await self._store.read(_SQL["writes"], values, fresh=True)
            except TooLarge:  # values may be large, and servers limit their answers
                if count == 1:
                    raise
                count //= 2
                continue
            found += map(self._write_of, rows)
            if len(rows) < count:
                return found

    def _write_of(self, row: Row) -> PendingWrite:
        return row["task_id"], row["channel"], self.serde.loads_typed((row["type"], row["value"]))

    async def _list(
        self,
        config: RunnableConfig | None,
        wanted: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> AsyncGenerator[CheckpointTuple, None]:
        left = limit
        async with aclosing(self._entries(config, before)) as entries:
            async for entry in entries:
                if left is not None and left <= 0:
                    return
                metadata = json.loads(entry["metadata"])
                if any(metadata.get(name) != value for name, value in (wanted or {}).items()):
                    continue
                place = _GraphPlace(entry["thread_id"], entry["namespace"])
                found = await self._find(place, entry["checkpoint_id"])
                if found is not None:  # removed since its page was read
                    left = None if left is None else left - 1
                    yield found

    async def _entries(
        self, config: RunnableConfig | None, before: RunnableConfig | None
    ) -> AsyncGenerator[Row, None]:
        """Yield the rows that these checkpoints have, without the checkpoints themselves."""
        given = config["configurable"] if config else {}
        thread_id, namespace = given.get("thread_id"), given.get("checkpoint_ns")
        only = get_checkpoint_id(config) if config else None
        name = "page" if thread_id is None else "page_of_thread"
        at: tuple[Value, Value] = ((get_checkpoint_id(before) if before else None), 0)
        while True:
            of_thread = None if thread_id is None else str(thread_id)
            values = (*self._values(of_thread, namespace), *at, only, _PAGE)
            rows = await self._store.read(_SQL[name], values, fresh=True)
            for row in rows:
                yield row
            if len(rows) < _PAGE:
                return
            at = (rows[-1]["checkpoint_id"], rows[-1]["id"])

    # --- writing ---------------------------------------------------------------------------------

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, and return the config that names it."""
        return await self._calls.run(partial(self._put, config, checkpoint, metadata))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, as `aput` does."""
        return self._calls.wait(partial(self._put, config, checkpoint, metadata))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task has written since a checkpoint."""
        await self._calls.run(partial(self._put_writes, config, writes, task_id, task_path))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task has written, as `aput_writes` does."""
        self._calls.wait(partial(self._put_writes, config, writes, task_id, task_path))

    async def _put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata
    ) -> RunnableConfig:
        place = _GraphPlace.of(config)
        whole = get_checkpoint_metadata(config, metadata)
        described = json.dumps(whole)
        if len(described) > _MAX_METADATA:
            raise BadValue(
                f"metadata of a checkpoint must be at most {_MAX_METADATA} bytes, got {len(described)}",
                hint="keep large values in the state of the graph",
            )
        kind, body = self._dump("a checkpoint", checkpoint)
        run_id = whole.get("run_id")
        values = (
            *self._values(*place),
            _checked("checkpoint_id", checkpoint["id"]),
            get_checkpoint_id(config),
            run_id if isinstance(run_id, str) else None,
            described,
            kind,
            body,
        )
        await self._write(*self._touch(place.thread_id), Statement(_SQL["put_checkpoint"], values))
        return place.config(checkpoint["id"])

    async def _put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> None:
        place = _GraphPlace.of(config)
        checkpoint_id = _checked("checkpoint_id", config["configurable"]["checkpoint_id"])
        of_task = (*self._values(*place), checkpoint_id, task_id)
        statements = [
            Statement(
                _SQL["put_write"],
                (
                    *of_task,
                    WRITES_IDX_MAP.get(channel, position),
                    task_path,
                    channel,
                    *self._dump(f"a value for {channel}", value),
                ),
            )
            for position, (channel, value) in enumerate(writes)
        ]
        if statements:
            await self._write(*self._touch(place.thread_id), *statements)

    def _dump(self, what: str, value: Any) -> tuple[str, bytes]:
        kind, body = self.serde.dumps_typed(value)
        if len(body) > _MAX_VALUE:
            raise BadValue(
                f"{what} must be at most {_MAX_VALUE} bytes, got {len(body)}",
                hint="store large values as artifacts, and keep their hashes in the state",
            )
        return kind, body

    def _touch(self, thread_id: str) -> Statements:
        """Return what each write begins with: it forgets an expired thread, and postpones its end."""
        values = self._values(thread_id)
        names = ("forget_checkpoints", "forget_writes")
        touch = Statement(_SQL["touch"], (*values, self._ttl_ms, _KIND))
        return [*(Statement(_SQL[name], values) for name in names), touch]

    # --- removing and copying --------------------------------------------------------------------

    async def adelete_thread(self, thread_id: str) -> None:
        """Remove a thread. From the first write on it is gone for all readers."""
        await self._calls.run(partial(self._delete, str(thread_id)))

    def delete_thread(self, thread_id: str) -> None:
        """Remove a thread, as `adelete_thread` does."""
        self._calls.wait(partial(self._delete, str(thread_id)))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints of runs, and what was written since them."""
        await self._calls.run(partial(self._delete_runs, run_ids))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints of runs, as `adelete_for_runs` does."""
        self._calls.wait(partial(self._delete_runs, run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints of a thread to another one, in one write. The limit is 10,000."""
        await self._calls.run(partial(self._copy, str(source_thread_id), str(target_thread_id)))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, as `acopy_thread` does."""
        self._calls.wait(partial(self._copy, str(source_thread_id), str(target_thread_id)))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove all but the latest checkpoints of threads, or the threads (`delete`).

        Where the latest one holds deltas since a snapshot, its predecessors are needed and stay.
        """
        await self._calls.run(partial(self._prune, thread_ids, strategy))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove checkpoints, as `aprune` does."""
        self._calls.wait(partial(self._prune, thread_ids, strategy))

    async def _delete(self, thread_id: str) -> None:
        values = self._values(thread_id)
        await self._write(Statement(_SQL["expire"], (*values, _KIND)))
        await self._remove("remove_writes", values=values)
        await self._remove("remove_checkpoints", values=values)
        await self._write(Statement(_SQL["remove_conversation"], values))

    async def _delete_runs(self, run_ids: Sequence[str]) -> None:
        values = self._values(orjson.dumps([*map(str, run_ids)]).decode())
        await self._remove("remove_writes_of_runs", "remove_checkpoints_of_runs", values=values)

    async def _prune(self, thread_ids: Sequence[str], strategy: str) -> None:
        if strategy not in ("keep_latest", "delete"):
            raise BadValue(f"strategy must be one of keep_latest, delete, got {strategy!r}")
        for thread_id in map(str, thread_ids):
            if strategy == "delete":
                await self._delete(thread_id)
            else:
                values = self._values(thread_id)
                names = ("remove_superseded_writes", "remove_superseded_checkpoints")
                await self._remove(*names, values=values)

    async def _remove(self, *names: str, values: tuple[Value, ...]) -> None:
        """Repeat these statements until the last one removes less than a batch."""
        statements = [Statement(_SQL[name], (*values, _BATCH)) for name in names]
        changed = _BATCH
        while changed == _BATCH:
            outcome = await self._store.write(Script(*self._guards, *statements, answer=_CHANGED))
            changed = outcome.rows.value

    async def _copy(self, source: str, target: str) -> None:
        values = self._values(source)
        if source == target:
            return
        refuse = Statement(_SQL["refuse_large_thread"], (*values, _MAX_COPIED), refusal=_TOO_LARGE)
        copies = [Statement(_SQL[name], (*values, target)) for name in ("copy_checkpoints", "copy_writes")]
        await self._write(refuse, *self._touch(target), *copies)

    # --- statements ------------------------------------------------------------------------------

    @property
    def _store(self) -> Store:
        return self._calls.mesh.store

    @property
    def _guards(self) -> Sequence[Statement]:
        return () if self._fence is None else (self._fence(),)

    def _values(self, *more: Value) -> tuple[Value, ...]:
        return (*self._store.mesh_id, *more)

    async def _write(self, *statements: Statement) -> None:
        await self._store.write(Script(*self._guards, *statements, repeatable=True))


class _GraphPlace(NamedTuple):
    """A thread, and the namespace of a graph in it."""

    thread_id: str
    namespace: str

    @classmethod
    def of(cls, config: RunnableConfig) -> _GraphPlace:
        """Return the place that a config names."""
        given = config["configurable"]
        return cls(
            _checked("thread_id", str(given["thread_id"])),
            _checked("checkpoint_ns", given.get("checkpoint_ns", "")),
        )

    def config(self, checkpoint_id: str) -> RunnableConfig:
        """Return the config that names a checkpoint here."""
        return {
            "configurable": {
                "thread_id": self.thread_id,
                "checkpoint_ns": self.namespace,
                "checkpoint_id": checkpoint_id,
            }
        }


def _checked(what: str, name: str) -> str:
    if len(name) > _MAX_NAME:
        raise BadValue(f"{what} must have at most {_MAX_NAME} characters, got {len(name)}")
    return name
