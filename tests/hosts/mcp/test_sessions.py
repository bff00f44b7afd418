"""The table of sessions: bounded for each credential and in total, the least recently used ones end first."""

from __future__ import annotations

from vox_mesh.http.mcp.sessions import McpSession, SessionTable


def _room_for(table: SessionTable, owner: str) -> list[McpSession]:
    with table.opening(owner) as may_open:
        assert may_open
        return table.make_room(owner)


def test_a_credential_makes_room_with_its_own_sessions_first() -> None:
    table = SessionTable(of_each=2, total=3)
    for session_id, owner in (("a", "ann"), ("b", "ben"), ("c", "ann")):
        table.add(session_id, owner)
    table.use("a", "ann")
    assert _room_for(table, "ann") == [("c", "ann")]
    assert _room_for(table, "ann") == []


def test_a_full_table_makes_room_with_the_least_recently_used_session() -> None:
    table = SessionTable(of_each=2, total=2)
    table.add("a", "ann")
    table.add("b", "ben")
    table.use("a", "ann")
    assert _room_for(table, "cleo") == [("b", "ben")]
    table.add("c", "cleo")
    table.forget("a", "ann")
    assert _room_for(table, "dan") == []


def test_sessions_that_are_being_opened_count() -> None:
    table = SessionTable(of_each=2, total=9)
    table.add("a", "ann")
    table.add("b", "ann")
    with table.opening("ann"), table.opening("ann") as may_open:
        assert may_open
        assert table.make_room("ann") == [("a", "ann"), ("b", "ann")]
        with table.opening("ann") as may_open_more:
            assert not may_open_more


def test_what_a_credential_has_not_opened_it_neither_adds_nor_ends() -> None:
    table = SessionTable(of_each=1, total=1)
    table.add("a", "ann")
    table.use("none", "eve")
    table.use("a", "eve")
    table.forget("a", "eve")
    assert _room_for(table, "ben") == [("a", "ann")]
