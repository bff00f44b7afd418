"""Fixtures: a clean environment, a real server, and every home in turn."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import certifi
import hypothesis
import pytest

from tests.support.running.lengths import SOAK, a_third_of_tests, has_its_turn
from tools.forked import load_first
from tools.homes import ALL_HOMES, MESH_SHARED, HomeCase
from tools.seeds import PROPERTY, VARIABLE, seed_of_run, seed_of_test
from tools.sqld import Server
from vox_mesh import Settings, Store, open_store
from vox_mesh.model.base.backends import ReplicaChoice
from vox_mesh.store.schema.unexpected import trigger_names

_MUCH_BYTES = 10_000_000

load_first(
    "tests.support.running.jobs",
    "tests.support.store.tally",
    "tests.support.locks.lock_history",
    "tests.support.oplog.rivals",
)

# Collecting makes a million objects that stay: no garbage is there to be found.
gc.disable()

# Without it, each request of an HTTP client looks for this optional package in all folders again.
sys.modules.setdefault("sniffio", None)  # type: ignore[arg-type]

# A shell starts what it runs in the background deaf to Ctrl-C, and the processes of a test inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


# A plain run tries the same examples each time; what a long one finds becomes a test of its own.
hypothesis.settings.register_profile(
    "vox-mesh", max_examples=200 if SOAK else 20, derandomize=not SOAK, deadline=None
)
hypothesis.settings.load_profile("vox-mesh")


def pytest_configure() -> None:
    """Draw the seed before the workers start, so that they inherit it."""
    seed_of_run()
    signal.signal(
        signal.SIGHUP, signal.SIG_DFL
    )  # started by `nohup`, all programs would inherit that it is ignored


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the homes on which a test is not run, unless tests are chosen by name."""
    if any("::" in each for each in config.args):
        return
    left_out = [item for item in items if not has_its_turn(item)]
    if left_out:
        items[:] = [item for item in items if has_its_turn(item)]
        config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish() -> None:
    """Exempt the collected tests, which stay to the end, from each later search for garbage."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_report_header() -> str:
    """Print the seed of the run first, with the variable that repeats it."""
    return f"{VARIABLE}={seed_of_run()}"


@pytest.fixture
def seed(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> int:
    """Return the seed of a test that draws something; its report says that it did."""
    drawn = seed_of_test(request.node.nodeid, seed_of_run())
    print(f"seed {drawn}, from {VARIABLE}={seed_of_run()}")
    record_property(PROPERTY, drawn)
    return drawn


@pytest.fixture(scope="session", autouse=True)
def few_certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give HTTP clients one authority to trust: each would load all of them, and no test needs more."""
    end = "-----END CERTIFICATE-----"
    first, _, _ = Path(certifi.where()).read_text().partition(end)
    path = tmp_path_factory.mktemp("certificates") / "one.pem"
    path.write_text(f"{first}{end}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certifi, "where", lambda: str(path))
        yield


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that other users may enter, with a path that is short enough for a socket."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable, no `.env`, no configuration and no mesh of the machine reaches a test."""
    import os

    for name in os.environ:
        if name.startswith(("VOX_MESH", "VOX_DB", "VOX_AGENT", "VOX_LOG", "VOX_SPOOL", "TURSO_", VARIABLE)):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / ".data"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def fresh_enough() -> Iterator[Callable[[], Server]]:
    """A server that has not much in it: a new replica has to copy all of that."""
    with ExitStack() as running:
        server: Server | None = None

        def choose() -> Server:
            nonlocal server
            if server is None or _bytes_in(server) > _MUCH_BYTES:
                running.close()
                server = running.enter_context(Server())
            return server

        yield choose


def _bytes_in(server: Server) -> int:
    total = 0
    for path in server._folder.rglob("*"):
        with suppress(FileNotFoundError):  # the server tidies up
            total += path.stat().st_size
    return total


@pytest.fixture(scope="module")
def shared_server(fresh_enough: Callable[[], Server]) -> Iterator[Server]:
    """One server for all tests that don't hurt it; each test has a scope or tables of its own."""
    server = fresh_enough()
    yield server
    left = server.triggers() - trigger_names()
    assert not left, f"a test must leave no trigger behind, which other processes refuse, got {left}"


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of the test's own, to be killed and frozen."""
    with Server() as server:
        yield server


@pytest.fixture(params=(*ALL_HOMES, a_third_of_tests(MESH_SHARED)), ids=str)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """The settings of each home in turn."""
    case: HomeCase = request.param
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    return case.settings(tmp_path, server)


@pytest.fixture
async def store(settings: Settings) -> AsyncIterator[Store]:
    """An open store on each home in turn."""
    async with AsyncExitStack() as opened:
        if settings.db_replica is ReplicaChoice.SHARED:  # the store of a test reads what another one follows
            await opened.enter_async_context(await open_store(settings))
        yield await opened.enter_async_context(await open_store(settings))
