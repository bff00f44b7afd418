"""A node is killed while it appends: its chain goes on where it ended, and its answers were true."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from proof.chaos.proxy import Fault, Proxy
from tests.processes.conftest import StartWriter
from tests.support.oplog.authors import NOTE, assert_log_tells_the_same
from tests.support.running import lengths
from tests.support.running.jobs import Job
from tests.support.running.processes import Report, Writer
from tests.support.store.tables import make_table
from tests.support.store.writers import COLUMNS
from tools.homes import FILE, MESH, HomeCase
from tools.sqld import Server
from vox_mesh import Script, Settings, Statement, open_store
from vox_mesh.errors import DatabaseBusy, OutcomeUnknown
from vox_mesh.mesh import Mesh
from vox_mesh.oplog.op_kinds import OpKind
from vox_mesh.store.slots import spools
from vox_mesh.store.spool.spool import status_of

_KILLS = 100 if lengths.SOAK else 3
_OUTAGES = 20 if lengths.SOAK else 2
_CALLERS = 6
_SPOOLED = 500 if lengths.SOAK else 60
_SECOND_PAGE = 5  # before it are the time, two keys, the last seal and the first page
_LONG = pytest.mark.timeout(1_800 if lengths.SOAK else 180)


async def _table(settings: Settings) -> str:
    async with await open_store(settings) as store:
        return await make_table(store, COLUMNS)


async def _begin_again(settings: Settings, start_author: StartWriter) -> Report:
    """One more life, in which all that was kept is replayed, and then a clean end; what it was."""
    (facts,) = await (await start_author(settings, Job("drain"))).finish()
    return facts


async def _check(settings: Settings, table: str, lives: list[Writer], last: Report) -> None:
    reports = [each for life in lives for each in life.reports if "op" in each]
    async with Mesh.open_command(settings) as mesh:
        await assert_log_tells_the_same(mesh, table, reports, unreported=_CALLERS)
        (chain,) = await mesh.oplog.verify()
        assert chain.node_id == last["node"]
        assert chain.sealed_to == chain.entries - 1  # a clean end vouches for all lives before it
    answer = [life.reports[0]["incarnation"] for life in lives] + [last["incarnation"]]
    assert answer == list(range(1, len(lives) + 2))


@pytest.mark.soak
@_LONG
@pytest.mark.parametrize("case", [MESH, *lengths.in_soak(FILE)], ids=str)
async def test_a_node_killed_again_and_again_goes_on_with_its_chain_and_loses_or_doubles_nothing(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest, start_author: StartWriter, seed: int
) -> None:
    random = Random(seed)
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    settings = case.settings(tmp_path, server)
    table = await _table(settings)
    lives = []
    for number in range(_KILLS):
        life = await start_author(
            settings, Job("stream", table, f"life{number}", callers=_CALLERS, seed=seed)
        )
        await life.until_more(1 + random.randrange(300))
        await life.kill()
        lives.append(life)
    await _check(settings, table, lives, await _begin_again(settings, start_author))


@pytest.mark.soak
@_LONG
async def test_a_node_killed_while_the_server_is_away_loses_nothing_of_what_it_kept(
    tmp_path: Path, server: Server, start_author: StartWriter
) -> None:
    settings = MESH.settings(tmp_path, server, db_deadline="1s")
    table = await _table(settings)
    lives = []
    for number in range(_OUTAGES):
        life = await start_author(settings, Job("stream", table, f"life{number}", callers=_CALLERS))
        await life.until_more(100)
        server.kill()
        await life.until(lambda reports: sum(each.get("outcome") == "spooled" for each in reports) > 8)
        await life.kill()
        await asyncio.to_thread(server.start)
        lives.append(life)
    await _check(settings, table, lives, await _begin_again(settings, start_author))


@pytest.mark.soak
async def test_what_one_incarnation_kept_the_next_one_appends_in_order_and_in_its_own_name(
    tmp_path: Path, server: Server, start_author: StartWriter
) -> None:
    settings = MESH.settings(tmp_path, server, db_deadline="1s")
    (first,) = await (await start_author(settings, Job("sit"))).finish()
    server.kill()
    author = await start_author(settings, Job("spool", writer="me", scripts=_SPOOLED))
    await author.until(lambda reports: len(reports) == _SPOOLED)
    assert {each["outcome"] for each in author.reports} == {"spooled"}
    await author.kill()
    (kept,) = spools(settings.home_dir)
    assert status_of(kept).depth == _SPOOLED
    await asyncio.to_thread(server.start)
    next_one = await _begin_again(settings, start_author)
    # The one in between never reached the database.
    assert (next_one["node"], next_one["incarnation"]) == (first["node"], first["incarnation"] + 1)
    assert (status_of(kept).depth, status_of(kept).refused) == (0, 0)
    async with Mesh.open_command(settings) as mesh:
        notes = await mesh.oplog.tail(2 * _SPOOLED, kind=NOTE.name)
        assert [note.op_id for note in notes] == [each["op"] for each in author.reports]
        assert {note.node_id for note in notes} == {first["node"]}
        assert [note.seq for note in notes] == list(range(notes[0].seq, notes[0].seq + _SPOOLED))
        assert [chain.problem for chain in await mesh.oplog.verify()] == [None]


async def test_after_an_op_of_unknown_fate_a_write_without_one_is_given_the_truth(
    tmp_path: Path, server: Server
) -> None:
    async with Proxy(server.port) as proxy:
        settings = MESH.settings(tmp_path, server, db_url=proxy.url, tick="1h")
        table = await _table(settings)
        async with Mesh.open(settings) as mesh:
            kind = OpKind("test.unspooled", appendable=False)
            mesh.oplog.register(kind)
            await mesh.oplog.append(kind.name, {})
            proxy.spoil(Fault.HOLD_ANSWER)
            with pytest.raises(OutcomeUnknown):
                await mesh.oplog.append(kind.name, {}, timeout=0.5)
            proxy.release()
            await mesh.store.write(Script(Statement(f"INSERT INTO {table} (n) VALUES (1)")))
            assert [chain.entries for chain in await mesh.oplog.verify()] == [3]  # the first made it owner


async def test_a_chain_that_could_only_be_read_in_part_at_first_is_sealed_unchanged(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None)
    with suppress(ZeroDivisionError):  # a command that ends like this vouches for nothing
        async with Mesh.open_command(settings) as mesh:
            mesh.oplog.register(NOTE)
            await asyncio.gather(*(mesh.oplog.append(NOTE.name, {"n": n}) for n in range(2_500)))
            raise ZeroDivisionError
    async with Mesh.open_command(settings) as mesh:
        sender = mesh.store._combiner._sender
        assert sender._database is not None
        asked = iter(range(1_000))

        async def busy_once() -> None:
            if next(asked) == _SECOND_PAGE:
                raise DatabaseBusy("for once")

        sender._database = sender._database._replace(prepare=busy_once)
        await mesh.oplog.anchor()
    async with Mesh.open_command(settings) as mesh:
        (chain,) = await mesh.oplog.verify()
        assert (chain.problem, chain.sealed_to) == (None, 2_501)
        assert next(asked) > _SECOND_PAGE
