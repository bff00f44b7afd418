"""Store the shared state in one of three backends, independently of locks, jobs and messages."""

from __future__ import annotations

from vox_mesh.store.rows import Row, Rows, Value
from vox_mesh.store.script import Answer, Item, Op, Outcome, Script, Shape, Statement, guard, new_key
from vox_mesh.store.store import Store, StoreStatus
from vox_mesh.store.watch.changes import Change

__all__ = [
    "Answer",
    "Change",
    "Item",
    "Op",
    "Outcome",
    "Row",
    "Rows",
    "Script",
    "Shape",
    "Statement",
    "Store",
    "StoreStatus",
    "Value",
    "guard",
    "new_key",
]
