"""Claims from inboxes of agents leave out what concerns roles alone, and those of roles do not."""

from __future__ import annotations

import pytest

from vox_mesh.messages.scripts import sql, sql_for_inboxes

_UNORDERED = "NOT is_ordered"


@pytest.mark.parametrize("name", ["claim", "claimable", "next_free"])
def test_agents_pay_for_no_look_at_unordered_messages(name: str) -> None:
    assert _UNORDERED in sql(name)
    assert _UNORDERED not in sql_for_inboxes(name, '["ann", "bob"]')
    assert sql_for_inboxes(name, '["ann","role:reviewer"]') == sql(name)
