"""Define the exceptions that end a session with the primary; a new session follows after a pause."""

from __future__ import annotations


class Interrupted(Exception):
    """The session can't continue."""


class Restarted(Interrupted):
    """The primary has a different log, or the file was changed: everything is fetched again, at once."""


class Spoiled(Restarted):
    """Another process changed the files during a change."""


class NeedsSnapshot(Interrupted):
    """The requested frame is no longer in the log: a snapshot has its content."""


class NoSnapshot(Interrupted):
    """The primary has no snapshot from that frame on, or not yet."""


class Incomplete(Interrupted):
    """A first snapshot lacks pages."""


class SessionOver(Interrupted):
    """The primary does not know the session: it has restarted since the hello."""
