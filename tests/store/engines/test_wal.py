"""The write-ahead log of the file home: a foreign reader that keeps it from being emptied is found."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from tools.homes import FILE
from vox_mesh import Script, Settings, Statement, open_store
from vox_mesh.cli.doctor import database_checks
from vox_mesh.cli.doctor.checks import CheckContext
from vox_mesh.store.engines.file import FileEngine

_BOUND: Final = 200_000


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The settings of the file home."""
    return FILE.settings(tmp_path, None)


async def test_a_log_that_a_foreign_reader_pins_is_warned_of_once_and_shown(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async with await open_store(settings) as store:
        engine = store._engine
        assert isinstance(engine, FileEngine)
        engine.wal._max_bytes = _BOUND

        async def write() -> None:
            engine.wal._checked_at = -float("inf")
            await store.write(Script(Statement("INSERT INTO big VALUES (zeroblob(300000))")))

        await store.write(Script(Statement("CREATE TABLE big (a)")))
        with closing(sqlite3.connect(settings.file_path)) as foreign:
            foreign.execute("BEGIN")
            foreign.execute("SELECT count(*) FROM big").fetchone()
            with caplog.at_level(logging.WARNING):
                await write()
                await write()
            assert len([each for each in caplog.records if "pinned by a reader" in each.message]) == 1
            status = store.wal_status
            assert status is not None
            assert status.is_pinned
            finding = await database_checks.write_ahead_log(_patient(settings, engine))
            assert finding is not None
            assert (finding.state, "read transaction" in finding.found) == ("warn", True)
        await write()  # and with it the log begins again
        await write()
        status = await engine.wal_status()
        assert not status.is_pinned


def _patient(settings: Settings, engine: FileEngine) -> CheckContext:
    patient = CheckContext(settings, {})
    patient.engine = engine
    return patient


async def test_a_log_that_no_one_pins_is_none_to_be_warned_of(settings: Settings) -> None:
    async with await open_store(settings) as store:
        engine = store._engine
        assert isinstance(engine, FileEngine)
        finding = await database_checks.write_ahead_log(_patient(settings, engine))
        assert finding is not None
        assert finding.state == "ok"
