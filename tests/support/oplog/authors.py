"""A program that is a node: a real process that says on stdout, in JSON lines, what became of its ops.

`python -m tests.support.oplog.authors JOB`, with the settings in the environment. Closing its stdin asks it
to finish and end. A job's `table` is where ops have their effects, its `writer` tells its rows from others'.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable
from random import Random
from typing import Any, Final

from tests.support.running.jobs import Job, do_job, report, stop_asked
from tests.support.store.tally import applied
from tests.support.store.writers import pair
from vox_mesh import MeshError, Script, Store
from vox_mesh.errors import StaleIncarnation
from vox_mesh.mesh import Mesh
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.node import MeshNode
from vox_mesh.oplog.op_kinds import OpKind
from vox_mesh.store.script import Op, Statement, new_key

NOTE: Final = OpKind("test.note", appendable=True)
"""An op that does nothing, and may wait in the spool."""

PAIR: Final = "test.pair"
"""The kind of ops that write two rows, or, refused, none."""

REFUSALS: Final = {"constraint": "failed", "guard": "was_written", "sql": "failed"}
"""The ways in which a script with an op is made to fail, and the reason that its entry must give."""

_WAYS: Final = ("good",) * 9 + ("note",) * 8 + tuple(REFUSALS)
_FAILING_SHARE: Final = 0.1
_PAGE: Final = 1_000
_PATIENCE_S: Final = 60.0
_LOG: Final = (
    "FROM agent_oplog NOT INDEXED WHERE scope_id = ?1 AND repository_id = ?2 AND id > ?3 AND id <= ?4"
)


def introduce(mesh: MeshNode) -> None:
    """Say who this is."""
    report(
        node=mesh.identity.node_id,
        key=mesh.identity.key.public,
        slot=mesh.store.slot_name,
        incarnation=mesh.incarnation,
    )


def _payload(job: Job, caller: int, n: int) -> dict[str, Any]:
    return {"writer": job.writer, "caller": caller, "n": n}


def _script(job: Job, caller: int, n: int, way: str, op_id: str) -> Script:
    """Two rows and an op that reports them; of a failing script, only its refused entry may stay."""
    rows = pair(job, caller, n, way).statements
    return Script(*rows, key=op_id, op=Op(PAIR, canonical(_payload(job, caller, n))))


async def _write(mesh: MeshNode, job: Job, caller: int, n: int, way: str) -> dict[str, Any]:
    """Author one op; its id, and the answer to its caller."""
    facts = {"writer": job.writer, "caller": caller, "n": n, "way": way}
    op_id = new_key()
    try:
        if way == "note":
            outcome = await mesh.oplog.append(NOTE.name, _payload(job, caller, n), key=op_id)
        else:
            outcome = await mesh.store.write(_script(job, caller, n, way, op_id))
    except MeshError as error:
        return facts | {"op": op_id, "outcome": type(error).__name__}
    return facts | {"op": outcome.key, "outcome": "spooled" if outcome.spooled else "applied"}


async def stream(job: Job) -> None:
    """Ops of all sorts from every caller, as fast as they go, until asked to stop or replaced."""
    random = Random(f"{job.seed} {job.writer}")
    stopping = asyncio.create_task(stop_asked())
    async with Mesh.open() as mesh:
        mesh.oplog.register(NOTE)
        introduce(mesh)

        async def call(caller: int) -> None:
            n, result = 0, ""
            while not stopping.done() and result != StaleIncarnation.__name__:
                facts = await _write(mesh, job, caller, n, random.choice(_WAYS))
                result = facts["outcome"]
                report(**facts)
                n += 1

        await asyncio.gather(*(call(caller) for caller in range(job.callers)))
        await stopping


async def crowd(job: Job) -> None:
    """A number of ops, of which a tenth is refused; when asked, a digest of the log as seen here."""
    random = Random(f"{job.seed} {job.writer}")
    failing = [random.choice(list(REFUSALS)) for _ in range(round(job.scripts * _FAILING_SHARE))]
    ways = failing + [random.choice(("good", "note")) for _ in range(job.scripts - len(failing))]
    random.shuffle(ways)
    left = iter(enumerate(ways))
    async with Mesh.open() as mesh:
        mesh.oplog.register(NOTE)
        introduce(mesh)

        async def call() -> None:
            for n, way in left:
                report(**await _write(mesh, job, 0, n, way))

        await asyncio.gather(*(call() for _ in range(job.callers)))
        report(done=True)
        await stop_asked()
        await mesh.store.synced()
        report(digest=await digest_of_log(mesh.store))


async def digest_of_log(store: Store) -> str:
    """What the log holds up to the last op of a crowd, in the order of commits, as this node sees it.

    Where the node has a replica, that answers and no one else.
    """

    async def ask(sql: str, *values: int | str) -> Any:
        statement = Statement(sql, (*store.mesh_id, *values))
        if store._replica is None:
            return await store.read(statement.sql, statement.params, fresh=True)
        async with asyncio.timeout(_PATIENCE_S):
            while (rows := await store._replica.answer(statement)) is None:
                await store.synced()  # others go on writing: for a moment it may hold less than was seen
        return rows

    newest = f"SELECT id {_LOG} AND kind IN (?5, ?6) ORDER BY id DESC LIMIT 1"
    end = (await ask(newest, 0, 2**62, NOTE.name, PAIR)).value
    digest, last = hashlib.sha256(), 0
    while last < end:
        rows = await ask(f"SELECT * {_LOG} ORDER BY id LIMIT {_PAGE}", last, end)
        for row in rows:
            digest.update(repr(tuple(row)).encode())
        last = rows[-1]["id"]
    return digest.hexdigest()


async def spool(job: Job) -> None:
    """Ops that may wait in the spool, one after another; then stay alive."""
    async with Mesh.open() as mesh:
        mesh.oplog.register(NOTE)
        for n in range(job.scripts):
            report(**await _write(mesh, job, 0, n, "note"))
        await stop_asked()


async def schedule(job: Job) -> None:
    """Schedule jobs, each after the one before; then stay alive."""
    async with Mesh.open() as mesh:
        before: list[str] = []
        for n in range(job.scripts):
            scheduled = await mesh.jobs.schedule("test.work", {"n": n}, after=before)
            before = [scheduled.ulid]
            report(**scheduled._asdict())
        await stop_asked()


async def drain(job: Job) -> None:
    """Begin again, and replay what the slot's spool holds."""
    async with Mesh.open() as mesh:
        await mesh.store.drained()
        introduce(mesh)
        await stop_asked()


async def sit(job: Job) -> None:
    """Be here."""
    async with Mesh.open() as mesh:
        introduce(mesh)
        await stop_asked()


async def assert_log_tells_the_same(
    mesh: Mesh, table: str, reports: Iterable[dict[str, Any]], unreported: int = 0
) -> None:
    """Compare the answers to the authors with the log, and the log with the effects of its ops.

    `unreported`: how many ops each author may have had under way when it was killed.
    """
    entries: dict[str, LogEntry] = {}
    async for page in mesh.oplog.entries():
        entries |= {entry.op_id: entry for entry in page if entry.kind in (NOTE.name, PAIR)}
    ops = {entry.payload for entry in entries.values()}
    assert len(ops) == len(entries), "an op is in the log twice"
    for chain in await mesh.oplog.verify():
        assert chain.problem is None, chain
    result = {each["op"]: each for each in reports}
    for op_id, each in result.items():
        _assert_true(each, entries.get(op_id))
    unheard = [entry for op_id, entry in entries.items() if op_id not in result]
    authors = [json.loads(entry.payload)["writer"] for entry in unheard]
    assert all(authors.count(author) <= unreported for author in authors), (
        f"no caller got an answer for {unheard}"
    )
    accepted = [json.loads(each.payload) for each in entries.values() if each.kind == PAIR and each.accepted]
    for author in {each["writer"] for each in (*result.values(), *accepted)}:
        effects = {(each["caller"], each["n"]) for each in accepted if each["writer"] == author}
        assert await applied(mesh.store, table, author) == effects, (
            f"the log of {author} and its effects differ"
        )


def _assert_true(result: dict[str, Any], entry: LogEntry | None) -> None:
    """Whether an author was given the truth about an op."""
    found = None if entry is None else (entry.accepted, entry.reason)
    match result["outcome"]:
        case "applied" | "spooled":
            assert found == (1, None), f"{result} is in the log as {found}"
        case "ConstraintFailed" | "Refused" | "BadStatement":
            assert found == (0, REFUSALS[result["way"]]), f"{result} is in the log as {found}"
        case "OutcomeUnknown":
            pass
        case _:
            assert found is None, f"{result}, and yet it is in the log as {found}"


if __name__ == "__main__":
    do_job(stream, crowd, spool, schedule, drain, sit)
