"""Many nodes append at once: no one hears of the others, and all see one log in one order."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.processes.conftest import StartWriter
from tests.support.oplog.authors import assert_log_tells_the_same, digest_of_log
from tests.support.running import lengths
from tests.support.running.jobs import Job
from tests.support.store.tables import make_table
from tests.support.store.writers import COLUMNS, FAILURES
from tools.homes import FILE, MESH_REPLICA, HomeCase
from vox_mesh import open_store
from vox_mesh.mesh import Mesh

_NODES = 8 if lengths.SOAK else 4
_OPS = 2_000 if lengths.SOAK else 60
_CALLERS = 4


@pytest.mark.soak
@pytest.mark.timeout(900 if lengths.SOAK else 180)
@pytest.mark.parametrize("case", [MESH_REPLICA, *lengths.in_soak(FILE)], ids=str)
async def test_many_nodes_append_at_once_and_all_of_them_see_the_same_log_in_the_same_order(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest, start_author: StartWriter, seed: int
) -> None:
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    settings = case.settings(tmp_path, server, db_deadline="60s")
    async with await open_store(settings) as store:
        table = await make_table(store, COLUMNS)
    jobs = [Job("crowd", table, f"w{i}", _OPS, callers=_CALLERS, seed=seed) for i in range(_NODES)]
    authors = await asyncio.gather(*(start_author(settings, job) for job in jobs))
    for author in authors:
        await author.until(lambda reports: {"done": True} in reports)
    ends = await asyncio.gather(*(author.finish() for author in authors))
    digests = {reports[-1]["digest"] for reports in ends}
    reports = [each for author in authors for each in author.reports if "op" in each]
    wrong = [each for each in reports if each["outcome"] != FAILURES.get(each["way"], "applied")]
    assert not wrong, f"reported something else than was due: {wrong}"
    assert len(reports) == _NODES * _OPS
    assert sum(each["way"] in FAILURES for each in reports) == _NODES * _OPS // 10
    async with Mesh.open_command(settings) as mesh:
        await assert_log_tells_the_same(mesh, table, reports)
        assert {await digest_of_log(mesh.store)} == digests
        chains = await mesh.oplog.verify()
        assert {chain.node_id for chain in chains} == {author.reports[0]["node"] for author in authors}
        for chain in chains:
            assert chain.entries in (_OPS + 1, _OPS + 2)  # its seal; and one of them became the owner
            assert chain.sealed_to == chain.entries - 1
