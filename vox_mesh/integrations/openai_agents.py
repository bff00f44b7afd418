"""OpenAI Agents SDK: sessions whose items are kept in the mesh."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from vox_mesh.errors import BadSettings, BadValue, Overloaded, TooLarge
from vox_mesh.integrations.mesh_calls import MeshCalls
from vox_mesh.model.base.durations import Duration, seconds_or_none
from vox_mesh.store.rows import Row, Value
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Answer, Script, Statement
from vox_mesh.store.store import Store

try:
    from agents.items import TResponseInputItem
    from agents.memory import SessionABC, SessionSettings
except ModuleNotFoundError as missing:
    raise BadSettings(
        "the OpenAI Agents SDK is not installed", hint="pip install 'vox-mesh[openai-agents]'"
    ) from missing

if TYPE_CHECKING:
    from vox_mesh.mesh import Mesh
    from vox_mesh.sync import Mesh as SyncMesh

_SQL: Final = named("conversations")
_CHANGED: Final = Answer(_SQL["changed"], columns=("changed",))
_KIND: Final = "session"
_MAX_NAME: Final = 2_048
_MAX_ITEM: Final = 6 * 2**20
"""An item, in bytes: servers limit their answers."""

_PAGE: Final = 500
_BATCH: Final = 500
_TRIES: Final = 20
"""How often the last item is removed again, when others add items at the same time."""


class MeshSession(SessionABC):
    """Keeps the items of a session in a mesh: `Runner.run(agent, "…", session=MeshSession(mesh, "ada"))`.

    Works in any event loop, and with `Runner.run_sync` in any thread but that of the mesh.
    """

    def __init__(
        self,
        mesh: Mesh | SyncMesh,
        session_id: str,
        *,
        ttl: Duration | None = "90d",
        fence: Callable[[], Statement] | None = None,
        session_settings: SessionSettings | None = None,
    ) -> None:
        """The session expires `ttl` after its last write; `None`: never.

        `fence` guards each write, such as `context.fence` of a job: a worker that has lost its claim writes
        nothing.
        """
        if not 0 < len(session_id) <= _MAX_NAME:
            raise BadValue(f"session_id must have 1 to {_MAX_NAME} characters, got {len(session_id)}")
        self.session_id = session_id
        self.session_settings = session_settings or SessionSettings()
        self._calls = MeshCalls(mesh)
        ttl_s = seconds_or_none("ttl", ttl)
        self._ttl_ms = None if ttl_s is None else round(ttl_s * 1_000)
        self._fence = fence

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the items in order: all, or the newest ones up to `limit`."""
        settings = self.session_settings
        wanted = settings.limit if limit is None and settings is not None else limit
        rows = await self._calls.run(partial(self._read, wanted))
        return [_item_of(row) for row in reversed(rows)]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items at the end, in one write."""
        if items:
            await self._calls.run(partial(self._add, [_text_of(item) for item in items]))

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the newest item and return it; `None` if there is none."""
        row = await self._calls.run(self._pop)
        return None if row is None else _item_of(row)

    async def clear_session(self) -> None:
        """Remove all items. From the first write on they are gone for all readers."""
        await self._calls.run(self._clear)

    async def _read(self, limit: int | None) -> list[Row]:
        found: list[Row] = []
        page = _PAGE
        while limit is None or len(found) < limit:
            wanted = page if limit is None else min(page, limit - len(found))
            before = found[-1]["id"] if found else None
            try:
                # From the database itself: another node may have just added some.
                rows = await self._store.read(_SQL["items"], self._values(before, wanted), fresh=True)
            except TooLarge:  # items may be large, and servers limit their answers
                if page == 1:
                    raise
                page //= 2
                continue
            found += rows
            if len(rows) < wanted:
                break
        return found

    async def _add(self, texts: Sequence[str]) -> None:
        added = Statement(_SQL["add_items"], self._values(orjson.dumps(texts).decode()))
        touch = Statement(_SQL["touch"], self._values(self._ttl_ms, _KIND))
        await self._store.write(
            Script(*self._guards, Statement(_SQL["forget_items"], self._values()), touch, added)
        )

    async def _pop(self) -> Row | None:
        for _ in range(_TRIES):
            rows = await self._read(1)
            if not rows:
                return None
            remove = Statement(_SQL["remove_item"], self._values(*rows[0]))
            if (await self._store.write(Script(*self._guards, remove, answer=_CHANGED))).rows.value:
                return rows[0]
        raise Overloaded("the newest item was not removed: others add items at the same time")

    async def _clear(self) -> None:
        await self._store.write(Script(*self._guards, Statement(_SQL["expire"], self._values(_KIND))))
        remove = Statement(_SQL["remove_items"], self._values(_BATCH))
        changed = _BATCH
        while changed == _BATCH:
            outcome = await self._store.write(Script(*self._guards, remove, answer=_CHANGED))
            changed = outcome.rows.value
        await self._store.write(Script(Statement(_SQL["remove_session"], self._values())))

    @property
    def _store(self) -> Store:
        return self._calls.mesh.store

    @property
    def _guards(self) -> Sequence[Statement]:
        return () if self._fence is None else (self._fence(),)

    def _values(self, *more: Value) -> tuple[Value, ...]:
        return (*self._store.mesh_id, self.session_id, *more)


def _text_of(item: Any) -> str:
    text = json.dumps(item)
    if len(text) > _MAX_ITEM:
        raise BadValue(
            f"an item must be at most {_MAX_ITEM} bytes, got {len(text)}",
            hint="keep large contents as files or artifacts, and name them",
        )
    return text


def _item_of(row: Row) -> TResponseInputItem:
    return cast(TResponseInputItem, json.loads(row["item"]))
