"""How hypothesis is run here: few examples on a real database, and how to repeat a failure in the output."""

from __future__ import annotations

import struct
from typing import Any, Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from vox_mesh import Store
from vox_mesh.store import Value

# The store outlives an example on purpose: opening one for each would take all the time there is.
_ALLOWED: Final = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow)

few: Final = settings(max_examples=12, deadline=None, print_blob=True, suppress_health_check=_ALLOWED)
many: Final = settings(max_examples=50, deadline=None, print_blob=True, suppress_health_check=_ALLOWED)

values: Final[st.SearchStrategy[Value]] = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=40),
    st.binary(max_size=40),
)
"""All that a column can hold."""


def exactly(value: Any) -> tuple[type, Any]:
    """A form of the value that is equal only for the same type and, in a float, the same bits."""
    return type(value), struct.pack("<d", value) if isinstance(value, float) else value


async def column(store: Store, table: str, name: str = "a") -> list[Any]:
    """The values of one column in the order of `id`."""
    return [row[0] for row in await store.read(f"SELECT {name} FROM {table} ORDER BY id")]
