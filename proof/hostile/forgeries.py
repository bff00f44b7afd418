"""Forgeries: rows that look genuine, made by a writer of the database who has no key of a node."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import orjson

from proof.history import Recorder
from proof.hostile.database import MESH_COLUMNS, HostileDatabase, StatementRefused
from proof.hostile.values import ATTACKER, FORGED
from proof.hostile.writer import BAIT
from vox_mesh.model.base.canonical import canonical, text_id
from vox_mesh.model.base.hlc import Hlc
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.jobs.bundle import base64_of
from vox_mesh.model.jobs.proof import Output, hash_of
from vox_mesh.model.messages.records import WIRE_FIELDS, Message
from vox_mesh.model.oplog.chain import COMMANDS, NO_HASH, LogEntry, signed_text
from vox_mesh.nodes.key_file import new_key as new_private_key
from vox_mesh.store import new_key

ROUTED: Final = "routed"
"""A kind of job that the attacker routes to a node that there is not."""

_REST_S: Final = 0.3
_OF_MESH: Final = "scope_id = ? AND repository_id = ?"


class Forger:
    """Makes forgeries of every kind, again and again."""

    def __init__(
        self,
        database: HostileDatabase,
        mesh: tuple[str, str],
        nodes: Sequence[str],
        trap: str,
        rng: random.Random,
        recorder: Recorder,
    ) -> None:
        self._database = database
        self._mesh = mesh
        self._nodes = nodes
        self._trap = trap
        self._rng = rng
        self._recorder = recorder
        self._key = SigningKey(new_private_key())
        self.jobs: list[str] = []
        """The jobs that it planted."""

    @property
    def ways(self) -> dict[str, Callable[[], Awaitable[str]]]:
        """What it forges. Each returns the chain that verifying the log must name, if any."""
        return {
            "message without a signature": self._unsigned_message,
            "message with a foreign signature": self._message,
            "message with a planted key": self._message_with_planted_key,
            "message with the key of a planted chain": self._message_with_planted_chain,
            "changed message": self._changed_message,
            "job without an op": self._job,
            "job with an op of a stranger": self._job_with_op,
            "job with an op in a planted chain": self._job_with_planted_chain,
            "changed job": self._changed_job,
            "ended job": self._ended_job,
            "output named by a row": self._named_output,
            "stored output": self._stored_output,
            "cron": self._cron,
            "owner": self._owner,
            "route": self._route,
            "coordinator": self._coordinator,
            "address": self._address,
        }

    async def run(self) -> None:
        """Forge until cancelled."""
        while True:
            for name, forge in self._rng.sample(list(self.ways.items()), len(self.ways)):
                try:
                    chain = await forge()
                except StatementRefused as error:
                    self._recorder.note("forgery", way=name, chain="", refused=str(error)[:200])
                else:
                    self._recorder.note("forgery", way=name, chain=chain, refused="")
                await asyncio.sleep(_REST_S)

    async def _insert(self, table: str, **columns: Any) -> None:
        row = {**dict(zip(MESH_COLUMNS, self._mesh, strict=True)), **columns}
        names, places = ", ".join(row), ", ".join("?" * len(row))
        await self._database.run(f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({places})", *row.values())

    # --- messages ------------------------------------------------------------------------------------

    def _forged_message(self, label: str, node: str) -> Message:
        return Message(
            message_uuid=new_key(),
            sender_agent=node,
            receiver_agent=BAIT,
            msg_type="event",
            payload=canonical({FORGED: label}),
            priority=3,
            thread_id=None,
            correlation_id=None,
            reply_to=None,
            expires_ms=None,
            ack_by_ms=None,
            max_attempts=10,
            hlc=str(Hlc(time.time_ns() // 1_000_000, self._rng.randrange(1_000), node)),
            sender_node=node,
            sender_incarnation=1,
            traceparent=None,
        )

    async def _plant_message(self, message: Message) -> str:
        await self._insert("a2a_messages", **dict(zip(WIRE_FIELDS, message, strict=False)))
        return ""

    async def _unsigned_message(self) -> str:
        message = self._forged_message("message without a signature", self._rng.choice(self._nodes))
        bad = self._rng.choice(("", "ed25519:", "ed25519:" + "0" * 128, "x" * 5_000, "\x00"))
        return await self._plant_message(message._replace(signature=bad))

    async def _message(self, label: str = "message with a foreign signature", node: str | None = None) -> str:
        message = self._forged_message(label, node or self._rng.choice(self._nodes))
        return await self._plant_message(
            message._replace(signature=self._key.sign(message.signed_text(*self._mesh)))
        )

    async def _message_with_planted_key(self) -> str:
        node = self._rng.choice(self._nodes)
        await self._plant_key(node)
        await self._message("message with a planted key", node)
        return node

    async def _message_with_planted_chain(self) -> str:
        """Open the chain of a node's commands, and send with the key that opened it."""
        node = self._rng.choice(self._nodes)
        chain = self._commands_of(node)
        await self._plant_key(chain)
        await self._plant_entry(chain, "OpenChain", {"key": self._key.public})
        await self._message("message with the key of a planted chain", node)
        return chain

    async def _changed_message(self) -> str:
        await self._database.run(
            f"UPDATE a2a_messages SET payload = ? WHERE {_OF_MESH} AND receiver_agent = ? "
            "AND ended_ms IS NULL AND payload LIKE '%prey%'",
            *(canonical({FORGED: "changed message"}), *self._mesh, BAIT),
        )
        return ""

    # --- jobs ----------------------------------------------------------------------------------------

    def _row_of_job(self, label: str) -> dict[str, Any]:
        manifest = canonical({"kind": BAIT, "nonce": new_key(), "payload": {FORGED: label}})
        row = {
            "job_id": text_id(manifest),
            "ulid": new_key(),
            "kind": BAIT,
            "priority": 3,
            "not_before_ms": 0,
        }
        row |= {
            "max_attempts": 3,
            "backoff_ms": 1_000,
            "created_ms": 0,
            "seed": "00" * 16,
            "last_op": new_key(),
        }
        return row | {"scheduled_by": self._rng.choice(self._nodes), "manifest": manifest}

    async def _plant_job(self, row: dict[str, Any]) -> None:
        await self._insert("jobs", **row)
        self.jobs.append(row["job_id"])

    async def _job(self) -> str:
        await self._plant_job(self._row_of_job("job without an op"))
        return ""

    async def _job_with_op(self, chain: str = "", label: str = "job with an op of a stranger") -> str:
        row, chain = self._row_of_job(label), chain or f"{ATTACKER}-{new_key()}"
        item = {"job_id": row["job_id"], "manifest": orjson.loads(row["manifest"]), "at_ms": 0}
        item |= {
            name: row[name] for name in ("ulid", "kind", "priority", "max_attempts", "backoff_ms", "seed")
        }
        entry = await self._plant_entry(chain, "ScheduleJob", {"at_ms": 0, "jobs": [item]})
        await self._plant_job(row | {"last_op": entry.op_id, "scheduled_by": chain})
        return chain

    async def _job_with_planted_chain(self) -> str:
        """Plant an op, with a key, as if a command of a node had scheduled it."""
        chain = self._commands_of(self._rng.choice(self._nodes))
        await self._plant_key(chain)
        return await self._job_with_op(chain, "job with an op in a planted chain")

    @staticmethod
    def _commands_of(node: str) -> str:
        return f"{node}{COMMANDS}"

    async def _changed_job(self) -> str:
        await self._database.run(
            f"UPDATE jobs SET manifest = replace(manifest, 'prey', ?) WHERE {_OF_MESH} AND kind = ? "
            "AND state = 'pending'",
            *(FORGED, *self._mesh, BAIT),
        )
        return ""

    async def _ended_job(self) -> str:
        """Put a job back that has ended, and mark what claimed and ended it as refused."""
        rows = await self._database.run(
            "SELECT j.job_id, o.op_id FROM jobs AS j JOIN agent_oplog AS o USING (scope_id, repository_id) "
            f"WHERE {_OF_MESH} AND j.kind = ? AND j.state = 'succeeded' AND o.kind = 'ScheduleJob' "
            "AND o.signature IS NOT NULL AND instr(o.payload, j.job_id) > 0 ORDER BY random() LIMIT 1",
            *(*self._mesh, BAIT),
        )
        for row in rows:
            self._recorder.note("put.back", job=row["job_id"])
            await self._database.run(
                "UPDATE agent_oplog SET accepted = 0, reason = 'stale_claim', result = NULL "
                f"WHERE {_OF_MESH} AND kind IN ('ClaimWork', 'StartWork', 'CompleteJob') "
                "AND instr(payload, ?) > 0",
                *(*self._mesh, row["job_id"]),
            )
            await self._database.run(
                "UPDATE jobs SET state = 'pending', claimer = NULL, claim_token = 0, started_ms = NULL, "
                f"ended_ms = NULL, attempts = 0, last_op = ? WHERE {_OF_MESH} AND job_id = ?",
                *(row["op_id"], *self._mesh, row["job_id"]),
            )
        return ""

    async def _named_output(self) -> str:
        """Have the rows of ended jobs name another output."""
        body = canonical({FORGED: "output"}).encode()
        output = Output("result", hash_of(body), len(body), "application/json")
        columns = {"hash": output.hash, "size": output.size, "type": output.type, "body": base64_of(body)}
        await self._insert("job_artifacts", node_id=self._rng.choice(self._nodes), created_ms=0, **columns)
        await self._database.run(
            f"UPDATE jobs SET output_artifacts = ? WHERE {_OF_MESH} AND kind = ? AND state = 'succeeded' "
            "AND output_artifacts <> '[]'",
            *(canonical([output.document()]), *self._mesh, BAIT),
        )
        return ""

    async def _stored_output(self) -> str:
        """Put another content in the place of stored outputs, under their hashes."""
        await self._database.run(
            f"UPDATE job_artifacts SET body = ? WHERE {_OF_MESH}",
            *(base64_of(canonical({FORGED: "output"}).encode()), *self._mesh),
        )
        return ""

    async def _cron(self) -> str:
        """Plant a cron that is due: a node that fires it would sign the job itself."""
        manifest = canonical({"kind": BAIT, "payload": {FORGED: "cron"}})
        row = {
            "name": f"{ATTACKER}-{new_key()}",
            "expression": "* * * * *",
            "timezone": "UTC",
            "manifest": manifest,
        }
        await self._insert("job_crons", **row, options="{}", next_ms=1, added_ms=1)
        return ""

    # --- keys, the owner and what it decides ---------------------------------------------------------

    async def _plant_key(self, chain: str, from_seq: int = 0) -> None:
        await self._insert("node_keys", node_id=chain, from_seq=from_seq, public_key=self._key.public)

    async def _plant_entry(self, chain: str, kind: str, payload: Any) -> LogEntry:
        """Append an entry that fits the end of a chain, signed with the attacker's key."""
        rows = await self._database.run(
            f"SELECT seq, hash, hlc FROM agent_oplog WHERE {_OF_MESH} AND node_id = ? "
            "ORDER BY seq DESC LIMIT 1",
            *(*self._mesh, chain),
        )
        seq, prev, hlc = rows[0].values() if rows else (0, NO_HASH, str(Hlc(1_700_000_000_000, 0, chain)))
        end = Hlc.parse(hlc)
        later = str(end._replace(wall_ms=end.wall_ms + 1))
        entry = LogEntry(
            *(0, chain, seq + 1, new_key(), kind, later, "[]", canonical(payload), self._mesh[1], prev),
            *("", None, 1, None, None),
        )
        entry = entry._replace(hash=entry.true_hash)
        entry = entry._replace(signature=self._key.sign(signed_text(entry.hash, self._mesh[0])))
        row = {name: value for name, value in entry._asdict().items() if name not in ("id", "repository_id")}
        await self._insert("agent_oplog", **row)
        return entry

    async def _owner(self) -> str:
        payload = {"key": self._key.public, "node": ATTACKER}
        op = await self._plant_entry(ATTACKER, "InitialiseMesh", payload)
        await self._plant_key(ATTACKER, 1)
        await self._database.run(
            f"UPDATE mesh_owner SET node_id = ?, public_key = ?, op_id = ? WHERE {_OF_MESH}",
            *(ATTACKER, self._key.public, op.op_id, *self._mesh),
        )
        return ATTACKER

    async def _route(self) -> str:
        await self._plant_key(ATTACKER, 1)
        await self._plant_entry(ATTACKER, "RouteKind", {"kind": ROUTED, "node": ATTACKER})
        return ATTACKER

    async def _coordinator(self) -> str:
        await self._plant_entry(ATTACKER, "DesignateCoordinator", {"node": ATTACKER})
        return ATTACKER

    async def _address(self) -> str:
        """Name the attacker's own service as that of a node."""
        await self._database.run(
            f"UPDATE node_addresses SET control_addr = ? WHERE {_OF_MESH} AND node_id = ?",
            *(self._trap, *self._mesh, self._rng.choice(self._nodes)),
        )
        return ""
