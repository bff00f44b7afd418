"""The server is killed in the middle of a stream of writes and comes back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from proof.chaos.proxy import Fault, Proxy
from tests.processes.conftest import StartWriter
from tests.support.running import lengths
from tests.support.running.jobs import Job
from tests.support.store.tables import make_table
from tests.support.store.tally import applied, assert_accounted_for
from tests.support.store.writers import COLUMNS, pair
from tools.homes import MESH, MESH_HTTP, HomeCase
from tools.sqld import Server
from vox_mesh import open_store
from vox_mesh.errors import OutcomeUnknown

_IMPATIENT_S = 0.4
_PATIENT_S = 60.0


@pytest.mark.soak
async def test_nothing_acknowledged_is_lost_and_nothing_is_applied_twice(
    tmp_path: Path, server: Server, start_writer: StartWriter
) -> None:
    over = {case: case.settings(tmp_path, server, db_request_timeout="2s") for case in (MESH, MESH_HTTP)}
    async with await open_store(over[MESH]) as store:
        table = await make_table(store, COLUMNS)
    # Patient callers live through it all and unseen; the others give up and must hear the truth.
    timeouts = (_PATIENT_S, _IMPATIENT_S)
    writers = [
        await start_writer(
            settings.model_copy(update={"scope_id": over[MESH].scope_id}),
            Job("stream", table, str(case), callers=6, timeouts=timeouts, resends=True),
        )
        for case, settings in over.items()
    ]
    for _ in range(lengths.SERVER_KILLS):
        for writer in writers:
            await writer.until_more(60)
        server.kill()
        await asyncio.to_thread(server.start)
    for writer in writers:
        await writer.until_more(60)
    all_reports = await asyncio.gather(*(writer.finish() for writer in writers))
    async with await open_store(over[MESH]) as store:
        for writer, reports in zip(writers, all_reports, strict=True):
            patient = [each for each in reports if each["caller"] % 2 == 0]
            assert {each["outcome"] for each in patient} == {"applied"}
            assert {each["outcome"] for each in reports if each.get("resent")} <= {"applied"}
            given_up = [each for each in reports if each["outcome"] != "applied" or each.get("resent")]
            print(f"{writer.job.writer}: {len(reports)} reported, {len(given_up)} had given up in between")
            assert given_up, "the server was never killed while a script was under way"
            assert_accounted_for(reports, await applied(store, table, writer.job.writer))


@pytest.mark.parametrize("case", [MESH, *lengths.cases_in_soak(MESH_HTTP)], ids=str)
async def test_a_script_of_unknown_outcome_sent_again_has_one_effect_and_a_definite_answer(
    case: HomeCase, tmp_path: Path, server: Server
) -> None:
    async with Proxy(server.port) as proxy:
        settings = case.settings(tmp_path, server, db_url=proxy.url, db_request_timeout="5s")
        async with await open_store(settings) as store:
            job = Job("", await make_table(store, COLUMNS), "me")
            script = pair(job, 0, 0)
            proxy.spoil(Fault.HOLD_ANSWER)
            writing = asyncio.create_task(store.write(script, timeout=2.0))
            await proxy.spoiled.acquire()
            server.kill()  # it has applied the script, and no caller got the answer
            with pytest.raises(OutcomeUnknown) as unknown:
                await writing
            assert unknown.value.key == script.key
            proxy.release()
            await asyncio.to_thread(server.start)
            outcome = await store.write(script, timeout=_PATIENT_S)
            assert outcome.repeated
            assert await applied(store, job.table, "me") == {(0, 0)}
