"""A table of the test's own, so that tests on one server leave each other alone."""

from __future__ import annotations

from vox_mesh import Script, Statement, Store
from vox_mesh.store.script import new_key


async def make_table(store: Store, columns: str = "id INTEGER PRIMARY KEY, a, b") -> str:
    """Create a table with a name of its own and return the name."""
    name = f"t_{new_key().lower()}"
    await store.write(Script(Statement(f"CREATE TABLE {name} ({columns})")))
    return name
