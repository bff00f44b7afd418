"""Tell changes of a few tables from all others, by the pages that a transaction has written.

The log has pages and no tables. So the B-trees of the tables are walked from their roots, and walked again
once one of their pages was written together with others, or has other children than before.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from typing import Final

HEARTBEAT_TABLES: Final = ("mesh_heartbeats", "node_incarnations", "node_vitals")
"""The tables that a heartbeat changes."""

MAX_PAGES: Final = 3
"""How many pages a transaction may have written to be looked at: one for each of the tables."""

_MAX_TREE: Final = 512
_FIRST_PAGE: Final = 1
_SCHEMA_COOKIE: Final = slice(40, 44)
_INTERIOR: Final = frozenset({0x02, 0x05})
_LEAF: Final = frozenset({0x0A, 0x0D})
_CELLS: Final = struct.Struct(">H")
_CELLS_AT: Final = 3
_CHILD: Final = struct.Struct(">I")
_LAST_CHILD_AT: Final = 8
_POINTERS_AT: Final = 12

Children = tuple[int, ...]


class TablePages:
    """Knows the pages of some tables. A page that it does not know counts as one of another table."""

    def __init__(self, read_page: Callable[[int], bytes], roots: Callable[[], Sequence[int] | None]) -> None:
        """`roots` returns the root pages of the tables, or `None` if they can't be read now."""
        self._read_page = read_page
        self._roots = roots
        self._schema = b""
        self._known_roots: Sequence[int] = ()
        self._tree: dict[int, Children] | None = None  # the children of each page, none of a leaf

    def forget(self) -> None:
        """Forget the pages, because many have changed."""
        self._tree = None

    def hold_all(self, changed: Collection[int]) -> bool:
        """Return whether a transaction that has written these pages has changed rows of the tables only."""
        if len(changed) > MAX_PAGES or _FIRST_PAGE in changed:
            self.forget()  # page 1 is written with the schema, and whenever pages are added or become free
            return False
        if self._tree is None and not self._walk():
            return False
        tree = self._tree
        assert tree is not None
        own = [number for number in changed if number in tree]
        if len(own) == len(changed) and all(tree[number] == self._children(number) for number in own):
            return True
        if own:
            self.forget()
        return False

    def _walk(self) -> bool:
        schema = self._read_page(_FIRST_PAGE)[_SCHEMA_COOKIE]
        if schema != self._schema or not self._known_roots:
            self._schema, self._known_roots = schema, self._roots() or ()
        tree: dict[int, Children] = {}
        ahead = [*self._known_roots]
        if not ahead:
            return False
        while ahead:
            number = ahead.pop()
            children = self._children(number)
            if children is None or number in tree or len(tree) >= _MAX_TREE:
                return False  # another process has changed the file, or the tables are too large
            tree[number] = children
            ahead += children
        self._tree = tree
        return True

    def _children(self, number: int) -> Children | None:
        """Return the children of a page of a B-tree; `None` if it is none."""
        page = self._read_page(number)
        if not page or page[0] in _LEAF:
            return () if page else None
        if page[0] not in _INTERIOR:
            return None
        try:
            (cells,) = _CELLS.unpack_from(page, _CELLS_AT)
            cell_at = struct.unpack_from(f">{cells}H", page, _POINTERS_AT)
            lefts = [_CHILD.unpack_from(page, at)[0] for at in cell_at]
            return (*lefts, _CHILD.unpack_from(page, _LAST_CHILD_AT)[0])
        except struct.error:
            return None
