"""Several scopes in one process: the settings of a node that serves them, and reads of all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar
from urllib.parse import SplitResult, urlsplit

from vox_mesh.errors import BadSettings, MeshError, Unreachable

if TYPE_CHECKING:
    from vox_mesh.settings import Settings

Result = TypeVar("Result")

_MAX_READS: Final = 8
"""How many databases are read at the same time."""

_OF_ONE_MESH: Final = {"owner_key": "VOX_MESH_OWNER_KEY", "agent_socket": "VOX_MESH_AGENT_SOCKET"}
_MAX_PORT: Final = 65_535


class ScopeAnswer(NamedTuple, Generic[Result]):
    """What a scope answered, or why it did not."""

    scope: str
    result: Result | None
    error: MeshError | None


def settings_of_scopes(settings: Settings, scopes: Sequence[str]) -> list[Settings]:
    """Return the settings of the scopes that one node serves, each once.

    If the node has an address or port of its own, the second scope has the next port, and so on.
    """
    names = list(dict.fromkeys(scopes))
    if len(names) > 1:
        for field, variable in _OF_ONE_MESH.items():
            if getattr(settings, field) is not None:
                raise BadSettings(
                    f"{variable} is of one mesh, and the node serves {len(names)} scopes",
                    hint="unset it, or start a node for each scope",
                )
    return [_at_port(settings.in_scope(name), offset) for offset, name in enumerate(names)]


def _at_port(settings: Settings, offset: int) -> Settings:
    """Return the settings with ports that are higher by an offset."""
    if not offset:
        return settings
    changed: dict[str, str] = {}
    if settings.control_addr is not None:
        url = urlsplit(settings.control_addr)
        changed["control_addr"] = f"{url.scheme}://{_moved(url, offset, 'VOX_MESH_CONTROL_ADDR')}"
    if settings.bind is not None:
        changed["bind"] = _moved(urlsplit(f"//{settings.bind}"), offset, "VOX_MESH_BIND")
    return settings.model_copy(update=changed) if changed else settings


def _moved(address: SplitResult, offset: int, variable: str) -> str:
    if address.port is None or address.port == 0 or address.port + offset > _MAX_PORT:
        raise BadSettings(
            f"{variable} has no port for each scope",
            hint="give it a port such as :7400: the next scopes listen on the ones after it",
        )
    host = address.netloc.rpartition(":")[0]
    return f"{host}:{address.port + offset}"


async def read_scopes(
    settings: Settings, read: Callable[[Settings], Awaitable[Result]]
) -> list[ScopeAnswer[Result]]:
    """Read every scope of the directory, a few at a time; each within the deadline of one read.

    A scope that can't be read has an error in its answer, and does not keep the others from answering.
    """
    names = () if settings.directory is None else settings.directory.names
    reading = asyncio.Semaphore(_MAX_READS)

    async def read_one(scope: str) -> ScopeAnswer[Result]:
        async with reading:
            try:
                async with asyncio.timeout(settings.db_deadline):
                    return ScopeAnswer(scope, await read(settings.in_scope(scope)), None)
            except TimeoutError:
                return ScopeAnswer(
                    scope, None, Unreachable(f"no answer within {settings.db_deadline:g} seconds")
                )
            except MeshError as error:
                return ScopeAnswer(scope, None, error)

    return list(await asyncio.gather(*map(read_one, names)))
