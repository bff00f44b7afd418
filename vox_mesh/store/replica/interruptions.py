"""What ends a session with the primary for now: another one is begun, after a pause."""

from __future__ import annotations


class Interrupted(Exception):
    """The session can't go on."""


class Restarted(Interrupted):
    """The primary has another log now, or the file is not what it was: all is fetched again, at once."""


class Spoiled(Restarted):
    """Somebody else has been at the files while they were being changed."""


class NeedsSnapshot(Interrupted):
    """The frame that was asked for is not in the log any more: a snapshot has what it became."""


class NoSnapshot(Interrupted):
    """The primary has no snapshot that begins there, or none yet."""


class Incomplete(Interrupted):
    """A first snapshot that lacks pages."""


class SessionOver(Interrupted):
    """The primary does not know us: it has been started again since we said hello."""
