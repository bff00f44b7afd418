"""The native replica: with the package where it installs, and without it everywhere."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
from pathlib import Path
from typing import Final

import pytest

from tests.support.store.gateways import gateway
from tools.homes import HomeCase
from tools.sqld import Server
from vox_mesh import Script, Settings, Statement, Store, open_store
from vox_mesh.contrib.native import COMMAND, ReplicaSource, SyncProcess
from vox_mesh.errors import ReplicaOff, Unreachable
from vox_mesh.model.base.backends import Backend, Driver, ReplicaChoice
from vox_mesh.store.replica.replica import ReplicaState

_HAS_PACKAGE: Final = importlib.util.find_spec("libsql") is not None
_NATIVE: Final = HomeCase(Backend.SERVER, Driver.WS, ReplicaChoice.NATIVE)


def _syncs_from_sqld() -> bool:
    major, minor, patch = (int(part) for part in importlib.metadata.version("libsql").split(".")[:3])
    return (major, minor, patch) <= (0, 1, 8)


with_package = pytest.mark.skipif(
    not _HAS_PACKAGE, reason="the package libsql has no wheel for this platform, or is not installed"
)
without_package = pytest.mark.skipif(_HAS_PACKAGE, reason="the package libsql is installed")


async def _put(store: Store, value: int) -> None:
    await store.write(Script(Statement("INSERT INTO native (n) VALUES (?)", (value,))))


async def _held(store: Store) -> int:
    """The latest value once the replica has it; it must be the replica that answers."""
    await store.synced()
    rows = await store.read("SELECT max(n) FROM native")
    assert rows.age_s, "the primary answered"
    value: int = rows.value
    return value


@with_package
async def test_it_answers_reads_keeps_up_and_survives_the_server(tmp_path: Path, server: Server) -> None:
    if not _syncs_from_sqld():
        pytest.skip("this version of libsql speaks only the protocol of Turso Cloud")
    async with await open_store(_NATIVE.settings(tmp_path, server, db_deadline="60s")) as store:
        await store.write(Script(Statement("CREATE TABLE native (n INTEGER)")))
        await _put(store, 1)
        assert await _held(store) == 1
        for value in range(2, 6):
            await _put(store, value)
            assert (await store.read("SELECT max(n) FROM native")).value == value, "its own write"
        assert await _held(store) == 5
        server.kill()
        server.start()
        await _put(store, 6)
        assert (await store.read("SELECT max(n) FROM native")).value == 6
        assert await _held(store) == 6
        status = (await store.status()).replica
        assert status is not None
        assert (status.driver, status.state) == ("native", ReplicaState.IN_TOUCH)


@with_package
async def test_a_package_that_cannot_sync_from_this_server_is_off_with_its_reason(
    tmp_path: Path, server: Server
) -> None:
    if _syncs_from_sqld():
        pytest.skip("this version of libsql can")
    async with await open_store(_NATIVE.settings(tmp_path, server)) as store:
        with pytest.raises(ReplicaOff, match="protocol"):
            await store.synced()
        await store.write(Script(Statement("CREATE TABLE native (n INTEGER)")))
        await _put(store, 1)
        assert (await store.read("SELECT max(n) FROM native")).value == 1


@without_package
async def test_without_the_package_the_primary_answers_and_a_warning_says_what_to_install(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with await open_store(_NATIVE.settings(tmp_path, server)) as store:
            rows = await store.read("SELECT count(*) FROM mesh_schema")
            assert (rows.value, rows.age_s) == (1, 0.0)
            assert (await store.status()).replica is None
    assert "pip install 'vox-mesh[native]'" in caplog.text


@without_package
async def test_where_a_server_does_not_push_and_the_package_is_missing_the_primary_answers(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway(server) as gate:
        settings = _through(gate.url, tmp_path, server)
        with caplog.at_level(logging.WARNING):
            async with await open_store(settings) as store:
                with pytest.raises(ReplicaOff, match="does not push"):
                    await store.synced()
                rows = await store.read("SELECT count(*) FROM mesh_schema")
                assert (rows.value, rows.age_s) == (1, 0.0)
    assert "pip install 'vox-mesh[native]'" in caplog.text


def _through(url: str, folder: Path, server: Server) -> Settings:
    case = HomeCase(Backend.SERVER, Driver.AUTO, ReplicaChoice.AUTO)
    return case.settings(folder, server, db_url=url)


@without_package
async def test_the_process_that_syncs_tells_what_is_in_its_way_and_ends_with_its_pipe(tmp_path: Path) -> None:
    source = ReplicaSource(tmp_path / "copy", "http://127.0.0.1:1", None, timeout=1.0)
    async with SyncProcess(COMMAND, source) as syncing:
        with pytest.raises(Unreachable, match="libsql"):
            await syncing.sync()
        with pytest.raises(Unreachable, match="libsql"):
            await syncing.sync()
        process = syncing._process
    assert process is not None
    assert process.returncode == 0
