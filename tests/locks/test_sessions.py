"""Session locks: they last as long as their processes, and no longer."""

from __future__ import annotations

import pytest

from tests.support.locks.holding import expire, is_held
from vox_mesh import Script, Statement
from vox_mesh.errors import BadSettings, BadValue, LockHeld, Overloaded
from vox_mesh.locks import sessions
from vox_mesh.model.locks.records import Lock
from vox_mesh.node import MeshNode
from vox_mesh.nodes.processes import ProcessId, host_id

_HOST = host_id() or ""
ONE, TWO, FAR = ProcessId(_HOST, 101, 1), ProcessId(_HOST, 102, 1), ProcessId("elsewhere", 101, 1)
_SHORT_S = 25
"""Less than half a session's TTL, and more than a slow test takes."""


@pytest.fixture
def ended() -> set[ProcessId]:
    """The processes that have ended."""
    return set()


@pytest.fixture
async def node(mesh: MeshNode, ended: set[ProcessId]) -> MeshNode:
    """A node that renews session locks, and sees processes end as the test wants it."""
    mesh.locks.sessions._has_ended = ended.__contains__
    await mesh.locks.sessions.run_once()
    return mesh


async def begin(node: MeshNode, process: ProcessId, key: str = "task:1", *, shared: bool = False) -> Lock:
    return await node.locks.acquire_or_renew(key, agent="ann", shared=shared, session=process)


async def left_s(node: MeshNode, lock: Lock) -> float:
    return (await node.locks.holders(lock.keys))[0].left_s


async def test_a_node_renews_the_lock_while_its_process_runs(node: MeshNode) -> None:
    lock = await begin(node, ONE)
    assert 30 < await left_s(node, lock) <= 60
    await node.locks.renew(lock, ttl=_SHORT_S)
    await node.locks.sessions.run_once()
    assert 30 < await left_s(node, lock) <= 60
    assert await is_held(node, lock), "under the same token"
    with pytest.raises(LockHeld):
        await node.locks.acquire_or_renew("task:1", agent="bob")


@pytest.mark.parametrize("shared", [False, True])
async def test_the_lock_of_an_ended_process_is_released_by_a_node(
    node: MeshNode, ended: set[ProcessId], shared: bool
) -> None:
    lock = await begin(node, ONE, shared=shared)
    ended.add(ONE)
    await node.locks.sessions.run_once()
    assert not await is_held(node, lock)
    assert (await node.locks.acquire("task:1", agent="bob")).fence_token > lock.fence_token
    assert [row["request_id"] for row in await _sessions(node)] == [""]


async def test_the_lock_of_an_ended_process_is_taken_over_at_once(
    node: MeshNode, ended: set[ProcessId]
) -> None:
    lock = await begin(node, ONE, "file:src/**")
    ended.add(ONE)
    taken = await node.locks.acquire_or_renew("file:src/lib.rs", agent="bob")
    assert taken.fence_token > lock.fence_token
    assert not await is_held(node, lock)
    again = await begin(node, ONE)
    fresh = await node.locks.acquire_or_renew("task:1", agent="ann")
    assert (fresh.is_renewed, fresh.fence_token > again.fence_token) == (False, True), "not a lock that ends"


async def test_a_lock_lasts_for_all_of_its_processes(node: MeshNode, ended: set[ProcessId]) -> None:
    lock = await begin(node, ONE)
    assert (await begin(node, TWO)).fence_token == lock.fence_token
    ended.add(ONE)
    await node.locks.sessions.run_once()
    assert not await node.locks.sessions.release_ended(await node.locks.holders())
    seen = sessions.Session(lock.request_id, ONE, 60.0)
    await node.locks.sessions._release([seen])  # the other one began after that look
    assert await is_held(node, lock)
    ended.add(TWO)
    await node.locks.sessions.run_once()
    assert not await is_held(node, lock)


async def test_a_process_of_another_host_is_never_taken_for_ended(node: MeshNode) -> None:
    lock = await begin(node, FAR)
    await node.locks.sessions.run_once()
    assert not await node.locks.sessions.release_ended(await node.locks.holders())
    node.locks.sessions._has_ended = lambda process: process.host == _HOST
    await node.locks.sessions._release([sessions.Session(lock.request_id, ONE, 60.0)])
    assert await is_held(node, lock)
    await expire(node, lock)
    assert (await node.locks.acquire("task:1", agent="bob")).fence_token > lock.fence_token


@pytest.mark.parametrize("shared", [False, True])
async def test_heartbeats_renew_the_session_locks_of_their_agent_only(mesh: MeshNode, shared: bool) -> None:
    lock = await mesh.locks.acquire("task:1", agent="ann", shared=shared, session="heartbeats")
    plain = await mesh.locks.acquire("task:2", agent="ann", ttl=_SHORT_S)
    assert 30 < await left_s(mesh, lock) <= 60
    await mesh.locks.renew(lock, ttl=_SHORT_S)
    assert await mesh.locks.heartbeat(agent="bob") == []
    await mesh.locks.sessions.run_once()
    assert await left_s(mesh, lock) <= _SHORT_S, "neither another agent nor a node renews it"
    (renewed,) = await mesh.locks.heartbeat(agent="ann")
    assert (renewed.keys, renewed.fence_token) == (lock.keys, lock.fence_token)
    assert 30 < await left_s(mesh, lock) <= 60
    assert await left_s(mesh, plain) <= _SHORT_S
    (before,) = await mesh.locks.holders(lock.keys)
    assert len(await mesh.locks.heartbeat(agent="ann")) == 1
    (after,) = await mesh.locks.holders(lock.keys)
    assert after.expires_at == before.expires_at, "one that has just been renewed is not written again"
    await expire(mesh, lock)
    assert await mesh.locks.heartbeat(agent="ann") == [], "it does not come back"
    await mesh.locks.sweep_expired_distributed_locks()
    assert [row["request_id"] for row in await _sessions(mesh)] == [""]


async def test_a_lock_of_a_process_and_of_heartbeats_lasts_for_either(
    node: MeshNode, ended: set[ProcessId]
) -> None:
    lock = await begin(node, ONE)
    (held,) = await node.locks.holders(lock.keys)
    assert (held.session, held.session_pid) == ("process", ONE.pid)
    assert (await node.locks.acquire_or_renew("task:1", agent="ann", session="heartbeats")).is_renewed
    ended.add(ONE)
    await node.locks.sessions.run_once()
    await node.locks.renew(lock, ttl=_SHORT_S)
    await node.locks.sessions.run_once()
    assert await left_s(node, lock) <= _SHORT_S, "a node renews no lock for a process that has ended"
    (held,) = await node.locks.holders(lock.keys)
    assert (held.session, held.session_pid) == ("heartbeats", 0)
    assert [each.keys for each in await node.locks.heartbeat(agent="ann")] == [lock.keys]


async def test_a_session_is_a_process_or_heartbeats(mesh: MeshNode) -> None:
    with pytest.raises(BadValue, match="session must be 'heartbeats' or a ProcessId, got True"):
        await mesh.locks.acquire("task:1", session=True)  # type: ignore[arg-type]
    with pytest.raises(BadValue, match="agent must be printable"):
        await mesh.locks.heartbeat(agent="a\nb")


async def test_without_a_node_on_this_machine_a_session_lock_is_refused(mesh: MeshNode) -> None:
    await mesh.store.write(Script(Statement("DELETE FROM lock_sessions WHERE request_id = ''")))
    with pytest.raises(BadSettings, match="no node of this mesh runs on this machine"):
        await begin(mesh, ONE)
    assert await mesh.locks.holders() == []


async def test_sessions_are_bounded_and_planted_rows_are_left_alone(
    node: MeshNode, ended: set[ProcessId], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = await begin(node, ONE)
    plant = "INSERT INTO lock_sessions VALUES (?, ?, ?, ?, ?, ?, ?)"
    for pid, ttl in (("x", 60_000), (1, "x"), (2, -1), (3, 2**62)):
        values = (*node.store.mesh_id, lock.request_id, _HOST, pid, 1, ttl)
        await node.store.write(Script(Statement(plant, values)))
    ended.add(ONE)
    await node.locks.sessions.run_once()
    monkeypatch.setattr(sessions, "_MAX_SESSIONS", 1)
    with pytest.raises(Overloaded, match="session locks"):
        await begin(node, TWO, "task:2")
    far = (*node.store.mesh_id, "", "elsewhere", 1, 1, 0)
    await node.store.write(Script(Statement(plant, far)))
    await node.store.write(
        Script(Statement("DELETE FROM lock_sessions WHERE request_id = '' AND host = ?", (_HOST,)))
    )
    monkeypatch.setattr(sessions, "_MAX_SESSIONS", 0)
    await node.locks.sessions.run_once()
    assert [row["host"] for row in await _sessions(node) if not row["request_id"]] == [_HOST]
    await node.locks.close()
    assert [each.lock_key for each in await node.locks.holders()] == ["task:1"]


async def _sessions(node: MeshNode) -> list[dict[str, object]]:
    sql = "SELECT * FROM lock_sessions WHERE scope_id = ? AND repository_id = ?"
    return [row.as_dict() for row in await node.store.read(sql, node.store.mesh_id, fresh=True)]
