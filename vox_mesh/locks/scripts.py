"""Lock requests, and the scripts that carry them out; `acquirer` says which script is sent when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import BadValue, LockHeld, StaleFence
from vox_mesh.model.base.durations import Duration, checked_seconds
from vox_mesh.model.base.reserved import refuse_mesh_agent
from vox_mesh.model.locks.patterns import FILE, normalise
from vox_mesh.model.locks.records import Holder, Lock, milliseconds_at
from vox_mesh.oplog.grants.permit import MESH_GRANT, grant_guard, sql_for_agent
from vox_mesh.store.rows import Value
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Answer, Item, Script, Shape, Statement, new_key

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


def sql_for_mode(name: str, *, is_shared: bool) -> str:
    """Return the named statement for exclusive or for shared locks."""
    return _SQL[f"{name}_share" if is_shared else name]


@cache
def _sql_on_table(name: str, *, is_shared: bool) -> str:
    return _SQL[name].replace("HOLDS", "lock_shares" if is_shared else "distributed_locks")


_TAKE: Final = Shape(
    "locks.take",
    (),
    answer=_SQL["take_fast_many"],
    columns=("fence_token", "expires_at"),
    subject=lambda item: item["lock_key"],
    repeatable=True,
    single_statement=_SQL["take_fast"],
    single_statement_values=(
        *("lock_key", "holder_node", "holder_agent", "key", "ttl", "grant", "compared_up_to"),
    ),
    single_statement_for=lambda item: sql_for_agent(
        _SQL["take_fast"], item["holder_agent"], item["holder_node"], item["grant"]
    ),
)
_RELEASE: Final = Shape(
    "locks.release",
    (),
    answer=_SQL["release_fast_many"],
    columns=(),
    subject=lambda item: item["lock_key"],
    repeatable=True,
    single_statement=_SQL["release_fast"],
    single_statement_values=("lock_key", "fence_token", "request_id"),
)


class QueueResult(NamedTuple):
    """What a queued script came to: the lock, or a ticket in the queue, or neither."""

    lock: Lock | None
    ticket: int | None


@dataclass(eq=False, slots=True)
class LockRequest:
    """Describe who wants which keys, in which mode and for how long."""

    keys: tuple[str, ...]
    holder_node: str
    holder_agent: str
    is_shared: bool
    ttl: float
    request_id: str = field(default_factory=new_key)
    grant: str | None = None
    """The grant by which the agent asks; `MESH_GRANT` if the mesh itself does."""
    usage: Sequence[Statement] = ()
    """What counts the request against the limits of its grant: in the script by which it joins the queue."""

    @classmethod
    def checked(
        cls,
        keys: str | Sequence[str],
        *,
        holder_node: str,
        holder_agent: str,
        is_shared: bool,
        ttl: Duration | None,
    ) -> LockRequest:
        """Return a request for the normalised keys, without duplicates.

        Raises `BadValue` if the keys, the agent or the TTL are out of bounds.
        """
        wanted = normal_keys(keys)
        if not 1 <= len(wanted) <= MAX_KEYS:
            raise BadValue(
                f"the number of keys must be between 1 and {MAX_KEYS}, got {len(wanted)}",
                hint="lock a pattern such as file:src/** instead of many files",
            )
        agent = checked_agent(holder_agent)
        checked = default_ttl(wanted) if ttl is None else checked_ttl(ttl)
        return cls(wanted, holder_node, agent, is_shared, checked)

    @property
    def is_simple(self) -> bool:
        """Return whether it is for one exclusive key: only such a request can be served the fast way."""
        return len(self.keys) == 1 and not self.is_shared

    @property
    def item_id(self) -> str:
        """Return by what the request and its lock are counted as open."""
        return item_id(self.request_id, self.keys)

    def to_lock(
        self, *, fence_token: int, expires_at: str, sent_at: float, left_s: float | None = None
    ) -> Lock:
        """Return the lock that this request was granted.

        `sent_at`: when the request was sent, by the monotonic clock. `left_s`: the seconds until the lease
        ends, if it may have been granted earlier.
        """
        return Lock(
            keys=self.keys,
            fence_token=fence_token,
            holder_node=self.holder_node,
            holder_agent=self.holder_agent,
            is_shared=self.is_shared,
            ttl=self.ttl,
            expires_at=expires_at,
            deadline=sent_at + (self.ttl if left_s is None else min(left_s, self.ttl)),
            request_id=self.request_id,
        )

    def result(self, row: Sequence[Any], *, sent_at: float) -> QueueResult:
        """Return what a queued script came to, by its answer."""
        fence_token, expires_at, ticket, now = row
        if fence_token is None:
            return QueueResult(None, ticket)
        left_s = (milliseconds_at(expires_at) - milliseconds_at(now)) / 1_000
        lock = self.to_lock(fence_token=fence_token, expires_at=expires_at, sent_at=sent_at, left_s=left_s)
        return QueueResult(lock, None)

    def refusal(self, holders: Sequence[Holder], *, waited_s: float = 0.0) -> LockHeld:
        """Return the error that says why the request is not granted."""
        after = f" after {waited_s:g} s" if waited_s else ""
        why = "; ".join(map(str, holders)) if holders else "others wait for it before you"
        message = f"{', '.join(self.keys)} was not acquired{after}: {why}"
        return LockHeld(message, holders, hint=self._refusal_hint(holders))

    def _refusal_hint(self, holders: Sequence[Holder]) -> str:
        own = (self.holder_node, self.holder_agent)
        held = next((each for each in holders if (each.holder_node, each.holder_agent) == own), None)
        if held is None:
            return "wait for it with --wait 10m (in Python and HTTP: `wait`), or try later"
        return f"your own lock on {held.lock_key} is in the way: use it, or release it first"

    # --- scripts ---------------------------------------------------------------------------------

    def fast_script(self, *, compared_up_to: int) -> Script:
        """Return the script that takes the only key if no other request contends for it."""
        item: Item = {
            "lock_key": self.keys[0],
            "holder_node": self.holder_node,
            "holder_agent": self.holder_agent,
            "ttl": modifier(self.ttl),
            "compared_up_to": compared_up_to,
            "grant": self.grant,
        }
        return Script.of(_TAKE, item, key=self.request_id)

    def queued_script(
        self,
        mesh: Mesh,
        preface: Sequence[Statement],
        *,
        compared_up_to: int | None,
        ticket: int | None,
        can_wait: bool,
        must_be_granted: bool = False,
    ) -> Script:
        """Return the script that joins the queue and takes the keys if nothing blocks them.

        `preface`: statements to begin with, as those about patterns. `compared_up_to`: the newest pattern
        that the only key of a simple request was compared with. `can_wait`: whether a blocked request stays
        in the queue. `must_be_granted`: the script has no effect if the request is blocked.
        """
        keys = json(self.keys)
        own = (*mesh, self.request_id, keys)
        holder = (int(self.is_shared), self.holder_node, self.holder_agent)
        if compared_up_to is None:
            take = self._take_statements(mesh)
        else:
            take = self._take_next_statements(mesh, compared_up_to)
        join = Statement(
            _sql_on_table("join_queue", is_shared=self.is_shared), (*own, *holder, ticket, WAITER_LEASE)
        )
        leave = () if can_wait else (Statement(_SQL["leave_queue"], (*mesh, self.request_id)),)
        return Script(
            *_grant_guards(mesh, self.holder_agent, self.holder_node, self.grant),
            *(self.usage if ticket is None else ()),
            *preface,
            Statement(_SQL["raise_generation"], mesh),
            Statement(_SQL["mark_contended"], (*mesh, keys)),
            join,
            *take,
            *leave,
            *_uncontend_statements(mesh, keys, deletes_free=not can_wait),
            *((self._granted_guard(mesh),) if must_be_granted else ()),
            answer=self.result_query(mesh),
            repeatable=True,
        )

    def result_query(self, mesh: Mesh) -> Answer:
        """Return the query for what the request came to."""
        sql = _sql_on_table("request_result", is_shared=self.is_shared)
        return Answer(sql, (*mesh, self.request_id, json(self.keys)), _RESULT_COLUMNS)

    def _take_statements(self, mesh: Mesh) -> Sequence[Statement]:
        """Return the statements that take all keys if nothing blocks any of them."""
        is_shared, keys = self.is_shared, json(self.keys)
        take = (*mesh, self.request_id, modifier(self.ttl))
        return (
            Statement(_SQL["raise_above"], (*mesh, keys)),
            Statement(sql_for_mode("take", is_shared=is_shared), take),
            Statement(
                _sql_on_table("leave_queue_if_granted", is_shared=is_shared), (*mesh, self.request_id, keys)
            ),
        )

    def _take_next_statements(self, mesh: Mesh, compared_up_to: int) -> Sequence[Statement]:
        """Return the statements that take the only key if it is free and this request is next."""
        own = (*mesh, self.request_id, self.keys[0])
        return (
            Statement(_SQL["leave_queue_if_next"], (*own, compared_up_to)),
            Statement(_SQL["take_if_next"], (*own, self.holder_node, self.holder_agent, modifier(self.ttl))),
        )

    def join_script(self, mesh: Mesh, *, compared_up_to: int) -> Script:
        """Return the script that only joins the queue of a held, contended key; it answers with a ticket."""
        own = (*mesh, self.request_id, self.keys[0])
        values = (*own, self.holder_node, self.holder_agent, WAITER_LEASE, compared_up_to)
        return Script(answer=Answer(_SQL["join_queue_behind"], values, ("ticket",)), repeatable=True)

    def hand_off_scripts(self, mesh: Mesh, lock: Lock, *, compared_up_to: int) -> tuple[Script, Script]:
        """Return the scripts that hand the only key off from its holder to this waiting request."""
        own = (*mesh, self.request_id, self.keys[0])
        holder = (self.holder_node, self.holder_agent, modifier(self.ttl))
        values = (*own, *holder, lock.fence_token, compared_up_to, self.grant, lock.request_id)
        sql = sql_for_agent(_SQL["hand_off"], self.holder_agent, self.holder_node, self.grant)
        leave = Statement(_SQL["leave_queue_if_handed_off"], own)
        return (
            Script(answer=Answer(sql, values, _RESULT_COLUMNS), repeatable=True),
            Script(leave, repeatable=True),
        )

    def _granted_guard(self, mesh: Mesh) -> Statement:
        sql = _sql_on_table("refuse_unless_granted", is_shared=self.is_shared)
        return Statement(sql, (*mesh, self.request_id, json(self.keys)), refusal=LockHeld.code)

    def withdraw_script(self, mesh: Mesh) -> Script:
        """Return the script that withdraws the request and releases its lock, if it was granted meanwhile."""
        keys = json(self.keys)
        withdraw = sql_for_mode("withdraw", is_shared=self.is_shared)
        return Script(
            Statement(_SQL["leave_queue"], (*mesh, self.request_id)),
            Statement(withdraw, (*mesh, self.request_id, keys)),
            *_uncontend_statements(mesh, keys, deletes_free=True),
            repeatable=True,
        )


def _grant_guards(mesh: Mesh, agent: str, node: str, grant: str | None) -> Sequence[Statement]:
    """Return the guard that an agent may hold locks by its grant; none if the mesh itself does."""
    return () if grant == MESH_GRANT else (grant_guard(mesh, agent, node, grant),)


def _uncontend_statements(mesh: Mesh, keys: str, *, deletes_free: bool) -> Sequence[Statement]:
    """Allow the fast way to keys without waiters; delete the rows of free keys if `deletes_free`."""
    uncontended = Statement(_SQL["clear_contended"], (*mesh, keys))
    return (uncontended, Statement(_SQL["delete_free"], (*mesh, keys))) if deletes_free else (uncontended,)


def fast_release_script(lock: Lock) -> Script | None:
    """Return the script that releases a simple lock if no request waits for its key; a row means it did."""
    if len(lock.keys) > 1 or lock.is_shared:
        return None
    item: Item = {
        "lock_key": lock.keys[0],
        "fence_token": lock.fence_token,
        "request_id": lock.request_id,
    }
    return Script.of(_RELEASE, item)


def release_script(mesh: Mesh, lock: Lock) -> Script:
    """Return the script that releases all keys of a lock; it answers with those still held."""
    sql = sql_for_mode("release", is_shared=lock.is_shared)
    return Script(answer=Answer(sql, held_values(mesh, lock), ("lock_key",)), repeatable=True)


def renew_script(mesh: Mesh, lock: Lock, *, ttl: float, grant: str | None) -> Script:
    """Return the script that renews a held lock for `ttl` seconds; it answers with its new expiry.

    `grant`: by which its agent goes on holding it.
    """
    held = held_values(mesh, lock)
    renew = Statement(sql_for_mode("renew", is_shared=lock.is_shared), (*held, modifier(ttl)))
    guards = _grant_guards(mesh, lock.holder_agent, lock.holder_node, grant)
    return Script(
        *guards,
        held_guard(mesh, lock),
        renew,
        answer=Answer(_SQL["expiry"], held, ("expires_at",)),
        repeatable=True,
    )


def held_guard(mesh: Mesh, lock: Lock) -> Statement:
    """Return a guard that lets a script run only while this lock is held, by token and request."""
    return Statement(_SQL["refuse_unless_held"], held_values(mesh, lock), refusal=StaleFence.code)


def moved_usage(mesh: Mesh, lock: Lock, request: LockRequest) -> Statement:
    """Return the statement that counts a converted lock under its new request, if its grant has limits."""
    return Statement(
        named("grant_usage")["move_lock"], (*mesh, item_id(lock.request_id, lock.keys), request.item_id)
    )


def item_id(request_id: str, keys: Sequence[str]) -> str:
    """Return by what a request and its lock are counted as open."""
    return f"{request_id} {keys[0]}"


def held_values(mesh: Mesh, lock: Lock) -> tuple[Value, ...]:
    """Return the values that identify a lock to the statements about it."""
    return (*mesh, json(lock.keys), lock.fence_token, lock.request_id)


def checked_agent(agent: object) -> str:
    """Return the name of an agent, if it is one."""
    if not isinstance(agent, str) or not agent.isprintable():
        raise BadValue(f"agent must be printable text, got {agent!r}", hint="pass the agent's id")
    refuse_mesh_agent(agent)
    return agent


def refuse_mesh_keys(keys: Iterable[str]) -> None:
    """Raise `BadValue` for keys of the mesh itself: agents can neither acquire nor end their locks."""
    for key in keys:
        if key.startswith(MESH_PREFIX):
            raise BadValue(
                f"key must not begin with {MESH_PREFIX!r}, got {key!r}",
                hint="choose another prefix: the locks of the mesh itself end with the node that holds them",
            )


def default_ttl(keys: Sequence[str]) -> float:
    """Return the default TTL in seconds: short for files, longer for all other keys."""
    return FILE_TTL_S if all(key.startswith(FILE) for key in keys) else TASK_TTL_S


def checked_ttl(ttl: Duration) -> float:
    """Return the TTL if it is within bounds."""
    return checked_seconds("ttl", ttl, MIN_TTL_S, MAX_TTL_S, hint="pass no ttl for the default of its keys")


def normal_keys(keys: object) -> tuple[str, ...]:
    """Return the keys in their normal form, without duplicates."""
    if isinstance(keys, str):
        return (normalise(keys),)
    wanted = list(keys) if isinstance(keys, Iterable) else [keys]
    texts = [key for key in wanted if isinstance(key, str)]
    if len(texts) < len(wanted):
        raise BadValue(
            f"keys must be text or a list of texts, got {keys!r}", hint="pass keys such as file:src/lib.rs"
        )
    return tuple(dict.fromkeys(map(normalise, texts)))


def modifier(seconds: float) -> str:
    """Return a duration as a modifier of the database's date functions."""
    return f"+{seconds:.3f} seconds"


def json(values: Sequence[str]) -> str:
    """Return the values as a JSON array."""
    return orjson.dumps(values).decode()
