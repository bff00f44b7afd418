"""Fill tables in bulk, by SQL: the rows that a long time of use would have left."""

from __future__ import annotations

import time
from typing import Final

from vox_mesh import Script, Statement
from vox_mesh.node import MeshNode
from vox_mesh.store.rows import Value
from vox_mesh.store.script import new_key

_AT_ONCE: Final = 20_000
_WAIT_S: Final = 120.0
_LONG_AGO_MS: Final = 30 * 86_400_000
_NUMBERS: Final = "WITH RECURSIVE n (i) AS (SELECT ?3 UNION ALL SELECT i + 1 FROM n WHERE i < ?4 - 1)"

_JOBS: Final = f"""
    INSERT INTO jobs (
        scope_id, repository_id, job_id, ulid, kind, state, priority, not_before_ms, max_attempts, backoff_ms,
        claim_token, attempts, created_ms, started_ms, ended_ms, scheduled_by, seed, last_op, manifest)
    {_NUMBERS}
    SELECT ?1, ?2, lower(hex(randomblob(32))), printf('%s%013d', ?5, i), 'bench.kind-' || (i % 10),
        iif(i % 100 = 0, 'failed', iif(?7, 'pending', 'succeeded')), 1, ?6, 3, 1000,
        1, 1, ?6, ?6, iif(?7 AND i % 100 <> 0, NULL, ?6), 'bench', lower(hex(randomblob(32))), ?5,
        '{{"kind":"bench"}}'
    FROM n
"""
_MESSAGES: Final = f"""
    INSERT INTO a2a_messages (
        scope_id, repository_id, message_uuid, sender_agent, receiver_agent, msg_type, payload, priority,
        max_attempts, hlc, sender_node, signature, state, acknowledged, ended_ms
    )
    {_NUMBERS}
    SELECT ?1, ?2, printf('%s%013d', ?5, i), 'sender-' || (i % ?8), ?7,
        'message', '{{"files":["src/parser/lexer.py"],"task":"review the change to the parser"}}', 1,
        10, printf('%013d-%05d-bench', ?6 + i / 1000, i % 1000), 'bench', 'none',
        iif(?9, 'acked', 'stored'), ?9, iif(?9, ?6, NULL)
    FROM n
"""
_LOG: Final = f"""
    INSERT INTO agent_oplog (
        scope_id, repository_id, node_id, seq, op_id, kind, hlc, causal_deps, payload, prev, hash, signature,
        accepted, reason
    )
    {_NUMBERS}
    SELECT ?1, ?2, 'bench', i + 1, printf('%s%013d', ?5, i), 'bench.note',
        printf('%013d-%05d-bench', ?6 - {_LONG_AGO_MS} + i / 1000, i % 1000), '[]',
        '{{"agent":"planner","file":"src/app.py","step":42,"why":"a text of common length"}}',
        lower(hex(randomblob(32))), lower(hex(randomblob(32))), NULL, 1, NULL
    FROM n
"""


async def fill_jobs(node: MeshNode, count: int, *, pending: bool = False) -> None:
    """Insert this many jobs: finished, or pending."""
    await _fill(node, _JOBS, count, int(pending))


async def fill_messages(
    node: MeshNode, receiver: str, count: int, senders: int, *, ended: bool = False
) -> None:
    """Insert this many messages into an inbox, without signatures."""
    await _fill(node, _MESSAGES, count, receiver, senders, int(ended))


async def fill_log(node: MeshNode, count: int) -> None:
    """Insert this many entries of an absent author into the log; they can't be verified."""
    await _fill(node, _LOG, count)


async def _fill(node: MeshNode, sql: str, count: int, *more: Value) -> None:
    prefix, now_ms = new_key()[:13], time.time_ns() // 1_000_000
    for first in range(0, count, _AT_ONCE):
        values = (*node.store.mesh_id, first, min(first + _AT_ONCE, count), prefix, now_ms, *more)
        await node.store.write(Script(Statement(sql, values)), timeout=_WAIT_S)
