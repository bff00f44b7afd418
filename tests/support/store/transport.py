"""Which way a store talks to its database."""

from __future__ import annotations

from vox_mesh import Store


async def transport(store: Store) -> str:
    """The driver that the store says it uses."""
    facts = (await store.status()).engine
    assert facts is not None, "the database does not answer"
    return facts.driver
