"""A request for a lock, and the scripts that it is made of.

There are two ways. The *short* one is for one key that nobody else is after: many such requests share one
statement. The *long* one is for everything else: the request stands in the queue, takes its keys if nothing
blocks it, and leaves the queue again if it was served or does not mean to wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

import orjson

from vox_mesh.errors import BadValue, LockHeld, StaleFence
from vox_mesh.model.base.durations import checked_seconds
from vox_mesh.model.locks.patterns import FILE, normalised
from vox_mesh.model.locks.records import Holder, Lock, milliseconds_at
from vox_mesh.store.rows import Value
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Answer, Item, Outcome, Script, Shape, Statement, new_key

Mesh = tuple[str, str]
"""The scope and the repository that the keys belong to."""

ALIVE: Final = "+2.000 seconds"
"""For how long a waiter counts as alive after it was heard of."""

FILE_TTL_S: Final = 30.0
TASK_TTL_S: Final = 300.0
MIN_TTL_S: Final = 0.1
MAX_TTL_S: Final = 86_400.0
MAX_KEYS: Final = 64
OWN: Final = "mesh:"
"""Keys that begin so belong to the mesh itself."""

_SQL: Final = named("locks")
_STANDING: Final = ("fence_token", "expires_at", "ticket", "now")


def of_mode(name: str, *, shared: bool) -> str:
    """A statement about holds, for one of the two modes."""
    return _SQL[f"{name}_share" if shared else name]


@cache
def _on_holds(name: str, *, shared: bool) -> str:
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
    """Who wants which keys, how and for how long."""

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
        """The request, if it is one: its keys in their normal form, each once, and a fitting time."""
        wanted = normal_keys(keys)
        if not 1 <= len(wanted) <= MAX_KEYS:
            raise BadValue(f"a lock is for 1 to {MAX_KEYS} keys, not {len(wanted)}")
        if not _is_name(agent):
            raise BadValue(f"agent must be printable text, got {agent!r}", hint="pass the agent's id")
        return cls(wanted, node, agent, shared, default_ttl(wanted) if ttl is None else checked_ttl(ttl))

    @property
    def is_simple(self) -> bool:
        """Whether it may go the short way."""
        return len(self.keys) == 1 and not self.is_shared

    def granted(self, token: int, expires_at: str, sent: float, left: float | None = None) -> Lock:
        """The lock that it came to; it was sent at `sent`, by a clock that never steps.

        `left`: the time that it has, if it may have been granted before.
        """
        deadline = sent + (self.ttl if left is None else min(left, self.ttl))
        return Lock(
            *(self.keys, token, self.node, self.agent, self.is_shared, self.ttl, expires_at, deadline),
            request_id=self.id,
        )

    def standing(self, outcome: Outcome, sent: float) -> tuple[Lock | None, int | None]:
        """What a long script of it has come to: a lock, or a place in the queue, or neither."""
        token, expires_at, ticket, now = outcome.rows[0]
        if token is None:
            return None, ticket
        left = (milliseconds_at(expires_at) - milliseconds_at(now)) / 1_000
        return self.granted(token, expires_at, sent, left), None

    def refusal(self, holders: Sequence[Holder], waited: float = 0.0) -> LockHeld:
        """Why it is not granted."""
        after = f" after {waited:g} s" if waited else ""
        who = "; ".join(map(str, holders)) if holders else "others wait for it before you"
        message = f"{', '.join(self.keys)} was not acquired{after}: {who}"
        return LockHeld(message, holders, hint="wait for it, or try later")

    # --- scripts ---------------------------------------------------------------------------------

    def short_script(self, known: int) -> Script:
        """Take the key if nobody is after it."""
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
        """Take the keys if nothing blocks us; otherwise wait for them, or don't.

        `preface`: for patterns. `known`: this is a simple request, and no pattern up to that one overlaps it.
        """
        keys, shared = json(self.keys), self.is_shared
        own = (*mesh, self.id, keys)
        holder = (int(shared), self.node, self.agent)
        standing = Answer(_on_holds("standing", shared=shared), own, _STANDING)
        return Script(
            *preface,
            Statement(_SQL["raise_generation"], mesh),
            Statement(_SQL["close_short_way"], (*mesh, keys)),
            Statement(_on_holds("stand_in_queue", shared=shared), (*own, *holder, ticket, ALIVE)),
            *(self._taking(mesh) if known is None else self._taking_next(mesh, known)),
            *(() if waits else [Statement(_SQL["leave_queue"], (*mesh, self.id))]),
            *_opening(mesh, keys, forgets=not waits),
            answer=standing,
            repeatable=True,
        )

    def _taking(self, mesh: Mesh) -> Sequence[Statement]:
        """Take all keys, if nothing at all blocks them."""
        shared, keys = self.is_shared, json(self.keys)
        return (
            Statement(_SQL["raise_above"], (*mesh, keys)),
            Statement(of_mode("take", shared=shared), (*mesh, self.id, modifier(self.ttl))),
            Statement(_on_holds("leave_queue_if_served", shared=shared), (*mesh, self.id, keys)),
        )

    def _taking_next(self, mesh: Mesh, known: int) -> Sequence[Statement]:
        """Take the only key, if it is free and this one's turn: what most come to, at a third of the cost."""
        own = (*mesh, self.id, self.keys[0])
        return (
            Statement(_SQL["leave_queue_if_next"], (*own, known)),
            Statement(_SQL["take_if_next"], (*own, self.node, self.agent, modifier(self.ttl))),
        )

    def pass_scripts(self, mesh: Mesh, lock: Lock, known: int) -> tuple[Script, Script]:
        """Have the key from its holder, if it is this one's turn; for a simple request that waits already."""
        own = (*mesh, self.id, self.keys[0])
        values = (*own, self.node, self.agent, modifier(self.ttl), lock.fence_token, known, lock.request_id)
        passed = Answer(_SQL["pass_on"], values, _STANDING)
        left = Statement(_SQL["leave_queue_if_passed"], own)
        return Script(answer=passed, repeatable=True), Script(left, repeatable=True)

    def behind_script(self, mesh: Mesh, known: int) -> Script:
        """Wait for a key that is held and waited for; answers with the ticket if that is so."""
        values = (*mesh, self.id, self.keys[0], self.node, self.agent, ALIVE, known)
        return Script(answer=Answer(_SQL["stand_behind"], values, ("ticket",)), repeatable=True)

    def served_guard(self, mesh: Mesh) -> Statement:
        """Lets a script go on only if this request has its keys."""
        sql = _on_holds("refuse_unless_served", shared=self.is_shared)
        return Statement(sql, (*mesh, self.id, json(self.keys)), refusal=LockHeld.code)

    def leave_script(self, mesh: Mesh) -> Script:
        """Want nothing any more, whatever was granted meanwhile."""
        keys = json(self.keys)
        return Script(
            Statement(_SQL["leave_queue"], (*mesh, self.id)),
            Statement(of_mode("give_up", shared=self.is_shared), (*mesh, self.id, keys)),
            *_opening(mesh, keys, forgets=True),
            repeatable=True,
        )


def _opening(mesh: Mesh, keys: str, *, forgets: bool) -> Sequence[Statement]:
    """Open the short way to keys that nobody waits for any more; what is not held at all may go."""
    opening = Statement(_SQL["open_short_way"], (*mesh, keys))
    return (opening, Statement(_SQL["forget_free"], (*mesh, keys))) if forgets else (opening,)


def short_release(lock: Lock) -> Script | None:
    """Let go of a simple lock, if nobody waits for its key; answers with a row if that was so."""
    if len(lock.keys) > 1 or lock.is_shared:
        return None
    item: Item = {"lock_key": lock.keys[0], "token": lock.fence_token, "request": lock.request_id}
    return Script.of(_RELEASE, item)


def long_release(mesh: Mesh, lock: Lock) -> Script:
    """Let go of all keys of a lock; answers with those that were still held."""
    answer = Answer(of_mode("release", shared=lock.is_shared), held_values(mesh, lock), ("lock_key",))
    return Script(answer=answer, repeatable=True)


def renew_script(mesh: Mesh, lock: Lock, ttl: float) -> Script:
    """Give the lock so long from now, if it is still held; answers with its new end."""
    held = held_values(mesh, lock)
    renew = Statement(of_mode("renew", shared=lock.is_shared), (*held, modifier(ttl)))
    return Script(
        held_guard(mesh, lock), renew, answer=Answer(_SQL["expiry"], held, ("expires_at",)), repeatable=True
    )


def held_guard(mesh: Mesh, lock: Lock) -> Statement:
    """Lets a script go on only while this hold is there, with its token and request, and not over."""
    return Statement(_SQL["refuse_unless_held"], held_values(mesh, lock), refusal=StaleFence.code)


def held_values(mesh: Mesh, lock: Lock) -> tuple[Value, ...]:
    """Return what identifies a hold to the statements about it."""
    return (*mesh, json(lock.keys), lock.fence_token, lock.request_id)


def _is_name(agent: object) -> bool:
    """Return whether this can be the name of an agent."""
    return isinstance(agent, str) and agent.isprintable()


def default_ttl(keys: Sequence[str]) -> float:
    """The time that a lock is for if nobody says: a file is edited soon, a task takes longer."""
    return FILE_TTL_S if all(key.startswith(FILE) for key in keys) else TASK_TTL_S


def checked_ttl(ttl: float) -> float:
    """The time that a lock is for, if it is within bounds."""
    return checked_seconds("ttl", ttl, MIN_TTL_S, MAX_TTL_S, hint="pass no ttl for the default of its keys")


def normal_keys(keys: object) -> tuple[str, ...]:
    """The keys in their normal form, each once."""
    if isinstance(keys, str):
        return (normalised(keys),)
    wanted = list(keys) if isinstance(keys, Iterable) else [keys]
    texts = [key for key in wanted if isinstance(key, str)]
    if len(texts) < len(wanted):
        raise BadValue(f"keys must be text or a list of texts, got {keys!r}", hint="such as file:src/lib.rs")
    return tuple(dict.fromkeys(map(normalised, texts)))


def modifier(seconds: float) -> str:
    """So many seconds from now, as the database writes it."""
    return f"+{seconds:.3f} seconds"


def json(values: Sequence[str]) -> str:
    """The values as a JSON array."""
    return orjson.dumps(values).decode()
