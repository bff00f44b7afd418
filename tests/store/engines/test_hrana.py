"""Talking to a real server: tokens, lost connections, deadlines, and the choice of the transport."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.store.gateways import gateway
from tests.support.store.tables import make_table
from tests.support.store.transport import transport
from tools.homes import MESH, MESH_HTTP, MESH_LIBSQL_CLIENT, HomeCase
from tools.sqld import Server, free_port
from vox_mesh import Answer, Outcome, Role, Script, Settings, Statement, Store, load_settings, open_store
from vox_mesh.errors import (
    DatabaseUnavailable,
    NoAnswer,
    OutcomeUnknown,
    ScriptFailed,
    ServerFull,
    Unauthorized,
    Unreachable,
    UpgradeRefused,
)
from vox_mesh.model.base.backends import Backend, Driver
from vox_mesh.store.batch import Batch
from vox_mesh.store.engine import Engine
from vox_mesh.store.engines.hrana.http import HttpEngine
from vox_mesh.store.engines.hrana.ws import WsEngine

AUTO = HomeCase(Backend.SERVER, Driver.AUTO)
WAYS = [MESH, MESH_HTTP, MESH_LIBSQL_CLIENT]
each_way = pytest.mark.parametrize("case", WAYS, ids=str)


def settings_for(case: HomeCase, folder: Path, server: Server, **more: Any) -> Settings:
    """Settings whose deadlines suit a server in trouble."""
    return case.settings(folder, server, **({"db_deadline": "20s", "db_request_timeout": "1s"} | more))


# --- tokens ---------------------------------------------------------------------------------------


@each_way
@pytest.mark.parametrize("kind", ["none", "garbage", "of another server"])
async def test_a_token_that_is_not_accepted_is_reported_at_once(
    case: HomeCase, kind: str, tmp_path: Path, shared_server: Server
) -> None:
    token = {"none": None, "garbage": "x.y.z", "of another server": Server().token}[kind]
    settings = settings_for(case, tmp_path, shared_server, db_token=token)
    # That package may lose the server's reason when the connection closes behind it.
    reported = (Unauthorized, Unreachable) if case is MESH_LIBSQL_CLIENT else Unauthorized
    with pytest.raises(reported) as refused:
        await open_store(settings, Role.COMMAND)
    if isinstance(refused.value, Unauthorized):
        assert "VOX_DB_TOKEN" in refused.value.line
    assert token is None or token not in refused.value.line


@each_way
async def test_a_token_that_may_only_read_reads_and_does_not_write(
    case: HomeCase, tmp_path: Path, shared_server: Server
) -> None:
    async with await open_store(case.settings(tmp_path, shared_server)) as store:
        table = await make_table(store)
    token = shared_server.token_with({"a": "ro"})
    settings = settings_for(case, tmp_path, shared_server, db_token=token, db_circuit_breaker=True)
    async with await open_store(settings, Role.COMMAND) as store:
        assert (await store.read(f"SELECT count(*) FROM {table}")).value == 0
        for _ in range(6):
            with pytest.raises(Unauthorized):
                await store.write(Script(Statement(f"INSERT INTO {table} (a) VALUES ('x')")))
        assert (await store.status()).breaker == "closed"
        assert (await store.read(f"SELECT count(*) FROM {table}")).value == 0


# --- a server that is away, full or frozen --------------------------------------------------------


@each_way
async def test_a_dead_port_is_unreachable_by_the_deadline(case: HomeCase, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    settings = case.settings(tmp_path, None, db_url=url, db_driver=case.driver, db_deadline="300ms")
    with pytest.raises(Unreachable, match=url):
        await open_store(settings, Role.COMMAND)
    async with await open_store(settings) as store:
        with pytest.raises(Unreachable):
            await store.read("SELECT 1")
        with pytest.raises(Unreachable):
            await store.write(Script(Statement("SELECT 1")))


async def test_a_full_server_is_reported_as_such_with_what_to_do(tmp_path: Path) -> None:
    flags = ("--checkpoint-interval-s", "60", "--max-concurrent-connections", "2")
    with Server(flags=flags) as server:
        engines = [WsEngine(server.url, server.token, 2.0) for _ in range(3)]
        for engine in engines[:2]:
            await engine.query(Statement("SELECT 1"))
        with pytest.raises(ServerFull, match="full") as full:
            await engines[2].query(Statement("SELECT 1"))
        assert "--max-concurrent-connections" in full.value.hint
        for engine in engines:
            await engine.close()


@each_way
async def test_a_frozen_server_does_not_make_a_reader_wait_beyond_its_deadline(
    case: HomeCase, tmp_path: Path, server: Server
) -> None:
    async with await open_store(settings_for(case, tmp_path, server, db_request_timeout="30s")) as store:
        await store.read("SELECT 1")
        server.freeze()
        began = time.monotonic()
        with pytest.raises(DatabaseUnavailable):
            await store.read("SELECT 1", timeout=0.3)
        assert time.monotonic() - began < 3
        server.thaw()
        assert (await store.read("SELECT 1")).value == 1


@each_way
async def test_a_frozen_server_leaves_the_outcome_of_a_write_unknown_until_it_is_asked_again(
    case: HomeCase, tmp_path: Path, server: Server
) -> None:
    async with await open_store(settings_for(case, tmp_path, server)) as store:
        table = await make_table(store)
        script = Script(Statement(f"INSERT INTO {table} (a) VALUES ('x')"))
        server.freeze()
        began = time.monotonic()
        with pytest.raises(OutcomeUnknown) as unknown:
            await store.write(script, timeout=0.3)
        assert time.monotonic() - began < 3
        assert unknown.value.key == script.key
        server.thaw()
        assert isinstance(await store.write(script), Outcome)
        assert (await store.read(f"SELECT count(*) FROM {table}")).value == 1


@each_way
async def test_a_frozen_server_is_waited_for_within_the_deadline(
    case: HomeCase, tmp_path: Path, server: Server
) -> None:
    async with await open_store(settings_for(case, tmp_path, server, db_request_timeout="300ms")) as store:
        table = await make_table(store)
        server.freeze()
        writing = asyncio.create_task(store.write(Script(Statement(f"INSERT INTO {table} (a) VALUES ('x')"))))
        await asyncio.wait([writing], timeout=0.5)
        assert not writing.done()
        server.thaw()
        await writing
        assert (await store.read(f"SELECT count(*) FROM {table}")).value == 1


@each_way
async def test_a_server_that_was_restarted_is_not_noticed_by_callers(
    case: HomeCase, tmp_path: Path, server: Server
) -> None:
    async with await open_store(settings_for(case, tmp_path, server)) as store:
        table = await make_table(store)
        for number in range(1, 3):
            server.kill()
            await asyncio.to_thread(server.start)
            await store.write(Script(Statement(f"INSERT INTO {table} (id) VALUES (?)", (number,))))
            assert (await store.read(f"SELECT count(*) FROM {table}")).value == number


async def test_reads_behind_one_that_was_cancelled_are_answered(tmp_path: Path, server: Server) -> None:
    settings = settings_for(MESH, tmp_path, server, db_circuit_breaker=True)
    async with await open_store(settings) as store:
        await store.read("SELECT 1")
        server.freeze()
        reads = [asyncio.create_task(store.read("SELECT ?", (number,))) for number in range(8)]
        await asyncio.sleep(0)
        await asyncio.wait(reads, timeout=0.05)
        reads[0].cancel()
        server.thaw()
        assert [rows.value for rows in await asyncio.gather(*reads[1:])] == list(range(1, 8))
        assert (await store.status()).breaker == "closed"


# --- choosing the transport -----------------------------------------------------------------------


async def _use(store: Store) -> str:
    """Write and read through the store; the transport it says it uses."""
    table = await make_table(store)
    await asyncio.gather(
        *(store.write(Script(Statement(f"INSERT INTO {table} (a) VALUES ('x')"))) for _ in range(10))
    )
    assert (await store.read(f"SELECT count(*) FROM {table}")).value == 10
    return await transport(store)


async def test_a_server_that_offers_websocket_is_talked_to_that_way(
    tmp_path: Path, shared_server: Server
) -> None:
    async with await open_store(AUTO.settings(tmp_path, shared_server)) as store:
        assert await _use(store) == "hrana over WebSocket"


@pytest.mark.parametrize("refusal", [400, 404, 426, 505])
async def test_a_refused_upgrade_means_http_and_is_asked_for_once(
    refusal: int, tmp_path: Path, shared_server: Server
) -> None:
    async with gateway(shared_server, refusal=refusal) as gate:
        async with await open_store(AUTO.settings(tmp_path, shared_server, db_url=gate.url)) as store:
            assert await _use(store) == "hrana over HTTP (/v3)"
        assert gate.seen.count("upgrade") == 1
        assert set(gate.seen) == {"upgrade", "/v3/pipeline"}


async def test_a_server_that_knows_only_version_two_is_spoken_to_in_it(
    tmp_path: Path, shared_server: Server
) -> None:
    async with gateway(shared_server, paths=("/v2/",)) as gate:
        async with await open_store(AUTO.settings(tmp_path, shared_server, db_url=gate.url)) as store:
            assert await _use(store) == "hrana over HTTP (/v2)"
        assert gate.seen.count("/v3/pipeline") == 1


async def test_a_gateway_in_trouble_is_no_answer_to_the_question_of_transport(
    tmp_path: Path, shared_server: Server
) -> None:
    async with gateway(shared_server, refusal=503) as gate:
        settings = AUTO.settings(tmp_path, shared_server, db_url=gate.url, db_deadline="300ms")
        with pytest.raises(Unreachable):
            await open_store(settings, Role.COMMAND)
        assert set(gate.seen) == {"upgrade"}


async def test_where_websocket_was_demanded_its_refusal_is_reported(
    tmp_path: Path, shared_server: Server
) -> None:
    async with gateway(shared_server) as gate:
        settings = MESH.settings(tmp_path, shared_server, db_url=gate.url)
        with pytest.raises(UpgradeRefused, match="WebSocket") as refused:
            await open_store(settings, Role.COMMAND)
        assert "VOX_DB_DRIVER" in refused.value.hint


async def test_what_is_no_database_server_is_reported_as_such(shared_server: Server) -> None:
    async with gateway(shared_server, paths=("/nothing/",)) as gate:
        engine = HttpEngine(gate.url, shared_server.token, 2.0)
        with pytest.raises(Unreachable, match="no libSQL server"):
            await engine.query(Statement("SELECT 1"))
        await engine.close()


async def test_a_server_that_hangs_is_given_up_after_the_request_timeout(server: Server) -> None:
    engines: list[Engine] = [
        WsEngine(server.url, server.token, 0.3),
        HttpEngine(server.url, server.token, 0.3),
    ]
    for engine in engines:
        await engine.query(Statement("SELECT 1"))
    server.freeze()
    for engine in engines:
        began = time.monotonic()
        with pytest.raises(NoAnswer):
            await engine.query(Statement("SELECT 1"))
        assert time.monotonic() - began < 3
    server.thaw()
    for engine in engines:
        assert (await engine.query(Statement("SELECT 1"))).value == 1
        await engine.close()


async def test_a_batch_is_waited_for_as_long_as_it_may_take(server: Server) -> None:
    engines: list[Engine] = [
        WsEngine(server.url, server.token, 0.3),
        HttpEngine(server.url, server.token, 0.3),
    ]
    batch = Batch()
    batch.patience_s = 60.0
    batch.add("CREATE TABLE IF NOT EXISTS slow (a)")
    batch.seal()
    for engine in engines:
        await engine.query(Statement("SELECT 1"))
        assert (await engine.run(batch)).committed
        server.freeze()
        waiting = asyncio.ensure_future(engine.run(batch))
        with pytest.raises(NoAnswer):
            await engine.query(Statement("SELECT 1"))  # others are not
        assert not waiting.done()
        server.thaw()
        assert (await waiting).committed
        await engine.close()


@pytest.mark.parametrize("case", [MESH, MESH_HTTP], ids=str)
async def test_an_answer_that_is_too_large_fails_its_script_and_nothing_else(
    case: HomeCase, shared_server: Server, tmp_path: Path
) -> None:
    async with await open_store(case.settings(tmp_path, shared_server)) as store:
        table = await make_table(store)
        greedy = Script(
            Statement(f"INSERT INTO {table} (a) VALUES ('x')"),
            answer=Answer("SELECT hex(zeroblob(6000000))", columns=("large",)),
        )
        modest = Script(Statement(f"INSERT INTO {table} (a) VALUES ('y')"))
        verdicts = await store.write_all([greedy, modest])
        assert isinstance(verdicts[0], ScriptFailed)
        assert isinstance(verdicts[1], Outcome)
        # The connection is as good as new: nothing was left open on it.
        await store.write(Script(Statement(f"INSERT INTO {table} (a) VALUES ('z')")))
        rows = await store.read(f"SELECT a FROM {table} ORDER BY id")
        assert [row["a"] for row in rows] == ["y", "z"]


async def test_a_page_instead_of_an_answer_is_no_answer(tmp_path: Path) -> None:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text="<html>please log in</html>", content_type="text/html")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", page)
    async with TestServer(app) as portal:
        settings = load_settings(
            _env_file=None,
            enabled=True,
            home_dir=tmp_path,
            db_url=str(portal.make_url("/")),
            db_deadline="300ms",
        )
        with pytest.raises(NoAnswer, match="not Hrana"):
            await open_store(settings, Role.COMMAND)


# --- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make_engine", [WsEngine, HttpEngine])
async def test_an_engine_says_which_answers_are_of_queries(
    make_engine: type[WsEngine] | type[HttpEngine], shared_server: Server
) -> None:
    noted: list[bool] = []
    engine = make_engine(
        shared_server.url,
        shared_server.token,
        10.0,
        lambda frame, connection, is_query: noted.append(is_query),
    )
    batch = Batch()
    batch.add("SELECT 1", wants_rows=True)
    batch.seal()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(engine.close)
        await engine.run(batch)
        await engine.query(Statement("SELECT 1"))
    assert noted == [False, True]
