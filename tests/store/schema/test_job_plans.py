"""However many jobs have ended, no step in the life of one, and no question, looks at all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.homes import FILE, MESH, HomeCase
from vox_mesh import open_store
from vox_mesh.store.schema.statements import named

NOUNS = (
    *("jobs", "job_notes", "job_steps", "job_waits", "job_cleanups", "job_kinds"),
    *("crons", "rules", "artifacts"),
)
LARGE = "jobs|j|h|r|job_predecessors|d|agent_oplog|o|job_logs|job_notes|job_steps|job_claims|job_artifacts"
ALL_OF_THEM = re.compile(rf"SCAN ({LARGE})\b(?! (USING|VIRTUAL))")
MAY_LOOK_AT_ALL = {"list"}  # it goes back through all of them, until it has found enough


@pytest.mark.parametrize("case", [FILE, MESH], ids=str)
async def test_no_statement_about_jobs_looks_at_all_of_them(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    async with await open_store(case.settings(tmp_path, server)) as store:
        for noun in NOUNS:
            for name, text in named(noun).items():
                if name in MAY_LOOK_AT_ALL:
                    continue
                count = max(map(int, re.findall(r"\?(\d+)", text)), default=0)
                whole = text.replace("IS_CURRENT", "true")
                plan = [row[3] for row in await store.read(f"EXPLAIN QUERY PLAN {whole}", ["{}"] * count)]
                assert not any(map(ALL_OF_THEM.match, plan)), f"{noun}.{name}: {plan}"
