"""However many messages have ended, no step in the life of one looks at all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.homes import FILE, MESH, HomeCase
from vox_mesh import open_store
from vox_mesh.messages.scripts import sql, sql_for_inboxes

LIFE = (
    "send",
    "claimable",
    "claimable_quick",
    "next_free",
    "nonempty_inboxes",
    "free_times",
    "claim_one",
    "is_first",
    "undeliverable",
    "dead_letter_exhausted",
    "claim",
    "ack",
    "renew",
    "release",
    "release_behind",
    "reject",
    "dead_letter",
    "expire",
    "overdue",
    "mark_overdue_reported",
    "has_maintenance",
)
OF_INBOXES = ("claimable", "next_free", "claim")
ALL_OF_THEM = re.compile(r"SCAN (a2a_messages|m)\b")


@pytest.mark.parametrize("case", [FILE, MESH], ids=str)
async def test_no_step_in_the_life_of_a_message_looks_at_all_messages(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    # A server has another version of SQLite than we do, and with it another mind about what is quick.
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    async with await open_store(case.settings(tmp_path, server)) as store:
        forms = [(name, sql(name).replace("IS_CURRENT", "true")) for name in LIFE]
        forms += [(f"{name} of agents", sql_for_inboxes(name, '["ann"]')) for name in OF_INBOXES]
        for name, text in forms:
            count = max(map(int, re.findall(r"\?(\d+)", text)))
            plan = [row[3] for row in await store.read(f"EXPLAIN QUERY PLAN {text}", ["[]"] * count)]
            assert not any(map(ALL_OF_THEM.match, plan)), f"{name}: {plan}"
