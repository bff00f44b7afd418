"""Presence: register a node, write its heartbeats, and record that it leaves."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from typing import Final

import orjson

from vox_mesh.errors import MeshError, NodeInUse, NodeNotAdmitted, Refused
from vox_mesh.model.nodes.liveness import DEAD_AFTER_TICKS, Vitals
from vox_mesh.model.nodes.node_address import NodeAddress, SignedAddress
from vox_mesh.model.nodes.store_memory import Epoch
from vox_mesh.nodes.clock import MAX_DISTANCE_MS, MeshClock
from vox_mesh.nodes.identity import Identity, key_refused, machine_id, not_admitted, planted_counters
from vox_mesh.oplog.writer import Joined
from vox_mesh.store.rows import whole_number
from vox_mesh.store.schema.schema import VERSION
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Answer, Script, Statement, WriterId, new_key
from vox_mesh.store.write.interceptor import DirectDatabase

_SQL: Final = named("nodes")
_CLOCK: Final = named("database_clock")
_BEAT_COLUMNS: Final = ("now_ms", "correction_ms", "incarnation", "beats", "last_id")
_JOIN_COLUMNS: Final = (
    "incarnation",
    "now_ms",
    "correction_ms",
    "beats",
    "last_id",
    "epoch",
    "epoch_op",
    "origin",
    "detected_ms",
)
_NO_VITALS: Final = Vitals()
_NOT_COUNTABLE: Final = "not_countable"


Described = tuple[object, ...]


@cache
def _own_version() -> str:
    return version("vox-mesh")


@dataclass(slots=True)
class Activity:
    """The activity that a node reports with every heartbeat; kept up to date by the parts that work."""

    agent_id: str | None = None
    text: str = ""
    control_addr: str | None = None
    kinds: list[str] = field(default_factory=list)
    capacity: int = 0
    load: int = 0
    consuming_ms: int | None = None
    progressing_ms: int | None = None
    policy_roots: list[str] | None = None


class Presence:
    """Write a node's row in `mesh_heartbeats`."""

    def __init__(
        self,
        identity: Identity,
        writer_id: WriterId,
        clock: MeshClock,
        *,
        place: str,
        tick_s: float,
        activity: Activity,
    ) -> None:
        self.node_id = identity.node_id
        self._identity = identity
        self._whose = (*writer_id[:2], identity.node_id)
        self._clock = clock
        self._place = place
        self._tick_ms = round(tick_s * 1_000)
        self._host = socket.gethostname()
        self._version = _own_version()
        self._registration_key = new_key()  # a retry begins no second incarnation
        self._has_joined = False
        self._address: SignedAddress | None = None
        self.activity = activity

    def announce(self, url: str, token_id: str) -> None:
        """Announce the address of this node's service, and the token it knows, with every heartbeat."""
        self.activity.control_addr = url
        address = NodeAddress(self.node_id, url, token_id, machine_id())
        signature = self._identity.key.sign(address.signed_text(*self._whose[:2]))
        self._address = SignedAddress(address, signature)

    @property
    def url(self) -> str | None:
        """The announced address of this node's service; `None` if it has none."""
        return None if self._address is None else self._address.address.url

    def consumed(self) -> None:
        """Record that this node still takes work."""
        self.activity.consuming_ms = self._clock.now_ms

    def progressed(self) -> None:
        """Record that this node's work progresses."""
        self.activity.progressing_ms = self._clock.now_ms

    def beat(
        self, vitals: Vitals = _NO_VITALS, *, counts: bool = True, reports: bool = True, spare_ms: int = 0
    ) -> Script:
        """Return the script of a heartbeat; it answers with the database's time and the state to remember.

        Each page that it changes goes to the replicas of all nodes. So it leaves no idempotency key, and
        `counts` and `reports` only if the count of heartbeats and the vitals have to be written. `spare_ms`:
        how much longer than a tick the next one may take.
        """
        statements = [self._row_statement(spare_ms), self._address_statement()]
        if reports:
            statements.append(self._vitals_statement(vitals))
        if counts:
            statements.append(Statement(_SQL["count_heartbeat"], self._whose))
        answer = Answer(_SQL["heartbeat_state"], self._whose, _BEAT_COLUMNS)
        return Script(*statements, answer=answer, repeatable=True)

    def leave(self) -> Script:
        """Return the script that records that the node leaves."""
        return Script(Statement(_SQL["leave"], self._whose))

    @property
    def described(self) -> Described:
        """Return what a heartbeat says of this node, without its signs of life."""
        activity = self.activity
        return (
            *(activity.agent_id, activity.text, activity.control_addr, tuple(activity.kinds)),
            *(
                activity.capacity,
                activity.load,
                None if activity.policy_roots is None else (*activity.policy_roots,),
            ),
        )

    def _row_statement(self, spare_ms: int = 0) -> Statement:
        activity = self.activity
        values = (
            *self._whose,
            activity.agent_id,
            activity.consuming_ms,
            activity.progressing_ms,
            self._tick_ms,
            activity.text,
            self._host,
            os.getpid(),
            self._version,
            activity.control_addr,
            self._identity.key.public,
            orjson.dumps(activity.kinds).decode(),
            activity.capacity,
            activity.load,
            self._clock.distance_ms if self._clock.is_set else 0,
            machine_id(),
            self._place,
            None if activity.policy_roots is None else orjson.dumps(activity.policy_roots).decode(),
            spare_ms,
        )
        return Statement(_SQL["heartbeat"], values)

    def _address_statement(self) -> Statement:
        """Return the statement that writes the signed address, or removes that of an earlier process."""
        if self._address is None:
            return Statement(_SQL["withdraw_address"], self._whose)
        (_, *values), signature = self._address
        return Statement(_SQL["announce_address"], (*self._whose, *values, signature))

    def _vitals_statement(self, vitals: Vitals) -> Statement:
        faults = orjson.dumps(vitals.faults).decode()
        return Statement(_SQL["note_vitals"], (*self._whose, *vitals[:-1], faults))

    # --- registering -----------------------------------------------------------------------------

    async def register(self, database: DirectDatabase) -> Joined:
        """Begin a new incarnation.

        Raises `NodeInUse` while another process is this node, `KeyRefused` if it is known with another key,
        and `NodeNotAdmitted` if the mesh is strict and its owner has not admitted it.
        """
        place = Statement(
            _SQL["refuse_if_in_use"],
            (*self._whose, self._place, DEAD_AFTER_TICKS),
            refusal="node_in_use",
        )
        own = (*self._whose, self._identity.key.public)
        key = Statement(_SQL["refuse_unless_key"], own, refusal="key_refused")
        admitted = Statement(_SQL["refuse_if_unadmitted"], own, refusal=NodeNotAdmitted.code)
        countable = Statement(_SQL["refuse_unless_countable"], self._whose, refusal=_NOT_COUNTABLE)
        script = Script(
            self._drop_correction(),
            place,
            key,
            admitted,
            countable,
            Statement(_SQL["raise_incarnation"], self._whose),
            self._row_statement(),
            self._address_statement(),
            Statement(_SQL["announce_version"], (*self._whose, VERSION)),
            Statement(_SQL["begin_first_epoch"], (*self._whose[:2], self._registration_key, self.node_id)),
            answer=Answer(_SQL["join_state"], self._whose, _JOIN_COLUMNS),
            key=self._registration_key,
        )
        started = self._clock.started()
        try:
            row = (await database.apply(script)).rows[0]
        except Refused as refused:
            raise await self._explain(refused, database) from None
        if not (self._has_joined or row["correction_ms"]) and self._clock.correction_ms:
            self._clock.accept()  # this node has dropped the correction
        self._has_joined = True
        self._clock.heard(row["now_ms"], started, row["correction_ms"])
        self._registration_key = new_key()  # for the next time it joins
        epoch = Epoch(whole_number(row["epoch"], "the epoch"), row["epoch_op"], row["origin"])
        return Joined(
            whole_number(row["incarnation"], "the incarnation"),
            whole_number(row["beats"], "the count of heartbeats"),
            row["last_id"],
            epoch,
            whole_number(row["detected_ms"], "the time of the epoch"),
        )

    def _drop_correction(self) -> Statement:
        own = (self._clock.wall_ms, MAX_DISTANCE_MS, DEAD_AFTER_TICKS)
        return Statement(_CLOCK["drop_correction"], own)

    async def _explain(self, refused: Refused, database: DirectDatabase) -> MeshError:
        self._registration_key = new_key()
        if refused.reason in ("key_refused", NodeNotAdmitted.code):
            own = (self._identity.key.public, self._host, os.getpid())
            await database.apply(Script(Statement(_SQL["request_key"], (*self._whose, *own))))
            explain = key_refused if refused.reason == "key_refused" else not_admitted
            return explain(self.node_id, self._identity.key.public)
        if refused.reason == _NOT_COUNTABLE:
            return planted_counters(self.node_id)
        now_ms = (await database.ask(Statement(_SQL["now"]))).value
        values = (*self._whose[:2], orjson.dumps([self.node_id]).decode())
        found = await database.ask(Statement(_SQL["nodes"], values))
        row = found[0]
        silent_s = max(0, now_ms - row["last_seen_ms"]) / 1_000
        return NodeInUse(
            f"{self.node_id} is in use by process {row['pid']} on {row['host']}, seen {silent_s:.1f} s ago",
            hint="stop that process, or choose another VOX_MESH_NODE_ID",
        )
