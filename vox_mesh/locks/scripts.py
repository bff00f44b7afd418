"""Lock requests, and the scripts that carry them out.

A request takes one of two paths. The *short* path is for one key that no other request contends for: many
such requests share one statement. The *long* path is for everything else: the request enters the queue, takes
its keys if nothing blocks it, and leaves the queue if it was served or does not wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

import orjson

from vox_mesh.errors import BadValue, LockHeld, StaleFence
from vox_mesh.model.base.durations import checked_seconds
from vox_mesh.model.locks.patterns import FILE, normalise
from vox_mesh.model.locks.records import Holder, Lock, milliseconds_at
from vox_mesh.store.rows import Value
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Answer, Item, Outcome, Script, Shape, Statement, new_key

Mesh = tuple[str, str]
"""The scope and the repository that the keys belong to."""

WAITER_LEASE: Final = "+2.000 seconds"
"""How long a waiter counts as alive after its last sign of life."""

FILE_TTL_S: Final = 30.0
TASK_TTL_S: Final = 300.0
MIN_TTL_S: Final = 0.1
MAX_TTL_S: Final = 86_400.0
MAX_KEYS: Final = 64
MESH_PREFIX: Final = "mesh:"
"""The prefix of keys that belong to the mesh itself."""

_SQL: Final = named("locks")
_RESULT_COLUMNS: Final = ("fence_token", "expires_at", "ticket", "now")


def sql_for_mode(name: str, *, shared: bool) -> str:
    """Return the named statement for exclusive or for shared locks."""
    return _SQL[f"{name}_share" if shared else name]


@cache
def _sql_on_table(name: str, *, shared: bool) -> str:
    return _SQL[name].replace("HOLDS", "lock_shares" if shared else "distributed_locks")


_TAKE: Final = Shape(
    "locks.take",
    (),
    answer=_SQL["take_free"],
    columns=("fence_token", "expires_at"),
    subject=lambda item: item["lock_key"],
    repeatable=True,
    lone=_SQL["take_one"],
    lone_values=("lock_key", "node", "agent", "key", "ttl", "known"),
)
_RELEASE: Final = Shape(
    "locks.release",
    (),
    answer=_SQL["release_free"],
    columns=(),
    subject=lambda item: item["lock_key"],
    repeatable=True,
    lone=_SQL["release_one"],
    lone_values=("lock_key", "token", "request"),
)


@dataclass(eq=False, slots=True)
class LockRequest:
    """Describe who wants which keys, in which mode and for how long."""

    keys: tuple[str, ...]
    node: str
    agent: str
    is_shared: bool
    ttl: float
    id: str = field(default_factory=new_key)

    @classmethod
    def checked(
        cls, keys: str | Sequence[str], node: str, agent: str, *, shared: bool, ttl: float | None
    ) -> LockRequest:
        """Return a request for the normalised keys, without duplicates.

        Raises `BadValue` if the keys, the agent or the TTL are out of bounds.
        """
        wanted = normal_keys(keys)
        if not 1 <= len(wanted) <= MAX_KEYS:
            raise BadValue(f"a lock is for 1 to {MAX_KEYS} keys, not {len(wanted)}")
        if not _is_agent_name(agent):
            raise BadValue(f"agent must be printable text, got {agent!r}", hint="pass the agent's id")
        return cls(wanted, node, agent, shared, default_ttl(wanted) if ttl is None else checked_ttl(ttl))

    @property
    def is_simple(self) -> bool:
        """Return whether the request may take the short path."""
        return len(self.keys) == 1 and not self.is_shared

    def to_lock(self, token: int, expires_at: str, sent: float, left: float | None = None) -> Lock:
        """Return the lock that this request was granted.

        `sent`: when the request was sent, by the monotonic clock. `left`: the seconds until the lease ends,
        if it may have been granted earlier.
        """
        deadline = sent + (self.ttl if left is None else min(left, self.ttl))
        return Lock(
            *(self.keys, token, self.node, self.agent, self.is_shared, self.ttl, expires_at, deadline),
            request_id=self.id,
        )

    def result(self, outcome: Outcome, sent: float) -> tuple[Lock | None, int | None]:
        """Return the result of a long script: a lock, or a ticket in the queue, or neither."""
        token, expires_at, ticket, now = outcome.rows[0]
        if token is None:
            return None, ticket
        left = (milliseconds_at(expires_at) - milliseconds_at(now)) / 1_000
        return self.to_lock(token, expires_at, sent, left), None

    def refusal(self, holders: Sequence[Holder], waited: float = 0.0) -> LockHeld:
        """Return the error that says why the request is not granted."""
        after = f" after {waited:g} s" if waited else ""
        who = "; ".join(map(str, holders)) if holders else "others wait for it before you"
        message = f"{', '.join(self.keys)} was not acquired{after}: {who}"
        return LockHeld(message, holders, hint="wait for it, or try later")

    # --- scripts ---------------------------------------------------------------------------------

    def short_script(self, known: int) -> Script:
        """Return the script that takes the key if no other request contends for it."""
        item: Item = {
            "lock_key": self.keys[0],
            "node": self.node,
            "agent": self.agent,
            "ttl": modifier(self.ttl),
            "known": known,
        }
        return Script.of(_TAKE, item, key=self.id)

    def long_script(
        self,
        mesh: Mesh,
        preface: Sequence[Statement],
        *,
        known: int | None,
        ticket: int | None,
        waits: bool,
    ) -> Script:
        """Return the script that takes the keys if nothing blocks them; otherwise it may wait.

        `preface`: the statements about patterns. `known`: set for a simple request that no pattern up to that
        number overlaps. `waits`: whether the request stays in the queue.
        """
        keys, shared = json(self.keys), self.is_shared
        own = (*mesh, self.id, keys)
        holder = (int(shared), self.node, self.agent)
        standing = Answer(_sql_on_table("request_state", shared=shared), own, _RESULT_COLUMNS)
        return Script(
            *preface,
            Statement(_SQL["raise_generation"], mesh),
            Statement(_SQL["close_fast_path"], (*mesh, keys)),
            Statement(_sql_on_table("join_queue", shared=shared), (*own, *holder, ticket, WAITER_LEASE)),
            *(self._take_statements(mesh) if known is None else self._take_next_statements(mesh, known)),
            *(() if waits else [Statement(_SQL["leave_queue"], (*mesh, self.id))]),
            *_open_statements(mesh, keys, deletes_free=not waits),
            answer=standing,
            repeatable=True,
        )

    def _take_statements(self, mesh: Mesh) -> Sequence[Statement]:
        """Return the statements that take all keys if nothing blocks any of them."""
        shared, keys = self.is_shared, json(self.keys)
        return (
            Statement(_SQL["raise_above"], (*mesh, keys)),
            Statement(sql_for_mode("take", shared=shared), (*mesh, self.id, modifier(self.ttl))),
            Statement(_sql_on_table("leave_queue_if_served", shared=shared), (*mesh, self.id, keys)),
        )

    def _take_next_statements(self, mesh: Mesh, known: int) -> Sequence[Statement]:
        """Return the statements that take the only key if it is free and this request is next."""
        own = (*mesh, self.id, self.keys[0])
        return (
            Statement(_SQL["leave_queue_if_next"], (*own, known)),
            Statement(_SQL["take_if_next"], (*own, self.node, self.agent, modifier(self.ttl))),
        )

    def pass_scripts(self, mesh: Mesh, lock: Lock, known: int) -> tuple[Script, Script]:
        """Return the scripts that hand the key off from its holder to this simple, waiting request."""
        own = (*mesh, self.id, self.keys[0])
        values = (*own, self.node, self.agent, modifier(self.ttl), lock.fence_token, known, lock.request_id)
        handed_off = Answer(_SQL["hand_off"], values, _RESULT_COLUMNS)
        left = Statement(_SQL["leave_queue_if_handed_off"], own)
        return Script(answer=handed_off, repeatable=True), Script(left, repeatable=True)

    def behind_script(self, mesh: Mesh, known: int) -> Script:
        """Return the script that waits behind other waiters of a held key; it answers with a ticket."""
        values = (*mesh, self.id, self.keys[0], self.node, self.agent, WAITER_LEASE, known)
        return Script(answer=Answer(_SQL["join_queue_behind"], values, ("ticket",)), repeatable=True)

    def served_guard(self, mesh: Mesh) -> Statement:
        """Return a guard that lets a script run only if this request has its keys."""
        sql = _sql_on_table("refuse_unless_served", shared=self.is_shared)
        return Statement(sql, (*mesh, self.id, json(self.keys)), refusal=LockHeld.code)

    def leave_script(self, mesh: Mesh) -> Script:
        """Return the script that withdraws the request and releases its lock, if it was granted meanwhile."""
        keys = json(self.keys)
        return Script(
            Statement(_SQL["leave_queue"], (*mesh, self.id)),
            Statement(sql_for_mode("cancel_request", shared=self.is_shared), (*mesh, self.id, keys)),
            *_open_statements(mesh, keys, deletes_free=True),
            repeatable=True,
        )


def _open_statements(mesh: Mesh, keys: str, *, deletes_free: bool) -> Sequence[Statement]:
    """Reopen the short path to keys without waiters; delete the rows of free keys if `deletes_free`."""
    opening = Statement(_SQL["open_fast_path"], (*mesh, keys))
    return (opening, Statement(_SQL["prune_free"], (*mesh, keys))) if deletes_free else (opening,)


def short_release(lock: Lock) -> Script | None:
    """Return the script that releases a simple lock if no request waits for its key; a row means it did."""
    if len(lock.keys) > 1 or lock.is_shared:
        return None
    item: Item = {"lock_key": lock.keys[0], "token": lock.fence_token, "request": lock.request_id}
    return Script.of(_RELEASE, item)


def long_release(mesh: Mesh, lock: Lock) -> Script:
    """Return the script that releases all keys of a lock; it answers with those still held."""
    answer = Answer(sql_for_mode("release", shared=lock.is_shared), held_values(mesh, lock), ("lock_key",))
    return Script(answer=answer, repeatable=True)


def renew_script(mesh: Mesh, lock: Lock, ttl: float) -> Script:
    """Return the script that renews a held lock for `ttl` seconds; it answers with its new expiry."""
    held = held_values(mesh, lock)
    renew = Statement(sql_for_mode("renew", shared=lock.is_shared), (*held, modifier(ttl)))
    return Script(
        held_guard(mesh, lock), renew, answer=Answer(_SQL["expiry"], held, ("expires_at",)), repeatable=True
    )


def held_guard(mesh: Mesh, lock: Lock) -> Statement:
    """Return a guard that lets a script run only while this lock is held, by token and request."""
    return Statement(_SQL["refuse_unless_held"], held_values(mesh, lock), refusal=StaleFence.code)


def held_values(mesh: Mesh, lock: Lock) -> tuple[Value, ...]:
    """Return the values that identify a lock to the statements about it."""
    return (*mesh, json(lock.keys), lock.fence_token, lock.request_id)


def _is_agent_name(agent: object) -> bool:
    """Return whether this is a valid agent name."""
    return isinstance(agent, str) and agent.isprintable()


def default_ttl(keys: Sequence[str]) -> float:
    """Return the default TTL in seconds: short for files, longer for all other keys."""
    return FILE_TTL_S if all(key.startswith(FILE) for key in keys) else TASK_TTL_S


def checked_ttl(ttl: float) -> float:
    """Return the TTL if it is within bounds."""
    return checked_seconds("ttl", ttl, MIN_TTL_S, MAX_TTL_S, hint="pass no ttl for the default of its keys")


def normal_keys(keys: object) -> tuple[str, ...]:
    """Return the keys in their normal form, without duplicates."""
    if isinstance(keys, str):
        return (normalise(keys),)
    wanted = list(keys) if isinstance(keys, Iterable) else [keys]
    texts = [key for key in wanted if isinstance(key, str)]
    if len(texts) < len(wanted):
        raise BadValue(f"keys must be text or a list of texts, got {keys!r}", hint="such as file:src/lib.rs")
    return tuple(dict.fromkeys(map(normalise, texts)))


def modifier(seconds: float) -> str:
    """Return a duration as a modifier of the database's date functions."""
    return f"+{seconds:.3f} seconds"


def json(values: Sequence[str]) -> str:
    """Return the values as a JSON array."""
    return orjson.dumps(values).decode()
