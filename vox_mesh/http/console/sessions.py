"""Sessions of the console: who has signed in, until when, and both secrets of each session.

They are in the memory of the node, and end with it. A session has two secrets: the cookie, which a browser
also sends to other ports of the same host, and one that only the page of this port keeps, for a header.
Neither is of use without the other.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from vox_mesh.model.base.reserved import person_agent

MAX_SESSIONS: Final = 64
"""The sessions at a time. Another one ends the oldest used of the lowest rank, and none of a higher one."""

LASTS_MS: Final = 12 * 3_600_000
"""How long a session lasts at most."""

IDLE_MS: Final = 3_600_000
"""How long it lasts without a request; a stream of events counts as one."""

_SECRET_BYTES: Final = 32


class SignedInBy(StrEnum):
    """The credential with which a session was made: it may never do more."""

    USER = "user"
    """The user of the node, over its local socket."""

    TOKEN = "token"  # noqa: S105 - a name, not a secret
    READ_TOKEN = "read token"  # noqa: S105

    @property
    def rank(self) -> int:
        """Its place in the order of rights: nothing of a higher rank ends for what a lower one does."""
        return (SignedInBy.READ_TOKEN, SignedInBy.TOKEN, SignedInBy.USER).index(self)


@dataclass(eq=False, slots=True)
class ConsoleSession:
    """A person who has signed in."""

    person: str
    by: SignedInBy
    is_read_only: bool
    ends_ms: int
    used_ms: int
    secret_digest: bytes

    @property
    def agent(self) -> str:
        """The name in which the person acts."""
        return person_agent(self.person)

    def is_over(self, now_ms: int) -> bool:
        """Return whether its time is over, or it was not used for too long."""
        return now_ms >= min(self.ends_ms, self.used_ms + IDLE_MS)


class OpenedSession(NamedTuple):
    """A new session, and both secrets, which are not kept."""

    session: ConsoleSession
    cookie: str
    secret: str


class ConsoleSessions:
    """The sessions of a node, the least recently used one first."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        self._by_cookie: OrderedDict[bytes, ConsoleSession] = OrderedDict()
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._by_cookie)

    def open(self, person: str, by: SignedInBy, *, is_read_only: bool) -> OpenedSession | None:
        """Open a session for a person with a valid name; `None` if there is no room, or the node stops."""
        self._drop_old()
        if self.is_closed or not self._make_room(by):
            return None
        now_ms, cookie, secret = self.now_ms(), new_secret(), new_secret()
        is_read_only = is_read_only or by is SignedInBy.READ_TOKEN
        session = ConsoleSession(person, by, is_read_only, now_ms + LASTS_MS, now_ms, digest(secret))
        self._by_cookie[digest(cookie)] = session
        return OpenedSession(session, cookie, secret)

    def find(self, cookie: str, secret: str) -> ConsoleSession | None:
        """Return the session with these secrets, and note that it is used; `None` if there is none."""
        key = digest(cookie)
        session = self._by_cookie.get(key)
        if session is None or not hmac.compare_digest(session.secret_digest, digest(secret)):
            return None
        now_ms = self.now_ms()
        if session.is_over(now_ms):
            del self._by_cookie[key]
            return None
        session.used_ms = now_ms
        self._by_cookie.move_to_end(key)
        return session

    def still_uses(self, session: ConsoleSession) -> bool:
        """Note that a stream uses a session; return whether the session has not ended."""
        for key, each in self._by_cookie.items():
            if each is session:
                now_ms = self.now_ms()
                if session.is_over(now_ms):
                    del self._by_cookie[key]
                    return False
                session.used_ms = now_ms
                return True
        return False

    def end(self, session: ConsoleSession) -> None:
        """End a session."""
        self._by_cookie = OrderedDict(
            (key, each) for key, each in self._by_cookie.items() if each is not session
        )

    def end_all(self) -> None:
        """End all sessions, and open no more."""
        self.is_closed = True
        self._by_cookie.clear()

    def _make_room(self, by: SignedInBy) -> bool:
        """End a session if there are too many, and return whether there is room for another one."""
        if len(self._by_cookie) < MAX_SESSIONS:
            return True
        surplus, session = min(self._by_cookie.items(), key=lambda each: each[1].by.rank)
        if session.by.rank > by.rank:
            return False
        del self._by_cookie[surplus]
        return True

    def _drop_old(self) -> None:
        now_ms = self.now_ms()
        self._by_cookie = OrderedDict(
            (key, each) for key, each in self._by_cookie.items() if not each.is_over(now_ms)
        )


def new_secret() -> str:
    """Return a new secret, which is safe in a URL, a header and a cookie."""
    return secrets.token_urlsafe(_SECRET_BYTES)


def digest(secret: str) -> bytes:
    """Return the digest of a secret, as which it is kept."""
    return hashlib.sha256(secret.encode(errors="surrogateescape")).digest()
