"""A resource outside of the mesh, such as a service that agents write to: it checks only fencing tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

from proof.history import Recorder

_TOKEN_BYTES: Final = 8


class Outside(Protocol):
    """Reject writes with a token older than one already seen, and note each write in the history."""

    @property
    def folder(self) -> Path | None:
        """Where nodes can keep files together; `None` in a simulation."""

    def write(self, recorder: Recorder, key: str, token: int) -> bool:
        """Write under a token; return whether it was accepted."""

    def effect(self, recorder: Recorder, key: str) -> None:
        """Have an effect that must happen once for each key."""


def _note(recorder: Recorder, key: str, token: int, highest: int) -> bool:
    taken = token >= highest
    recorder.note("outside.write", key=key, token=token, highest=highest, taken=taken)
    return taken


class MemoryOutside:
    """For nodes in one process."""

    folder: Final = None

    def __init__(self) -> None:
        self._highest: dict[str, int] = {}

    def write(self, recorder: Recorder, key: str, token: int) -> bool:
        """Write under a token; return whether it was accepted."""
        highest = self._highest.get(key, 0)
        self._highest[key] = max(highest, token)
        return _note(recorder, key, token, highest)

    def effect(self, recorder: Recorder, key: str) -> None:
        """Have an effect that must happen once for each key."""
        recorder.note("outside.effect", key=key)


class FolderOutside:
    """For nodes in separate processes: a file for each key, to which every write appends its token.

    Nothing is locked: a node that is paused or killed in the middle of a write blocks no other.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: dict[str, tuple[int, int]] = {}
        """By key: the offset up to which its file was read, and the highest token up to there."""

    def write(self, recorder: Recorder, key: str, token: int) -> bool:
        """Write under a token; return whether it was accepted."""
        with (self.folder / key.replace("/", "_")).open("a+b", buffering=0) as file:
            file.write(token.to_bytes(_TOKEN_BYTES, "big"))
            own = file.tell() - _TOKEN_BYTES
            begin, highest = self._seen.get(key, (0, 0))
            file.seek(begin)
            before = file.read(own - begin)
        tokens = (before[at : at + _TOKEN_BYTES] for at in range(0, len(before), _TOKEN_BYTES))
        highest = max(highest, *(int.from_bytes(each, "big") for each in tokens), 0)
        self._seen[key] = own, highest
        return _note(recorder, key, token, highest)

    def effect(self, recorder: Recorder, key: str) -> None:
        """Have an effect that must happen once for each key."""
        recorder.note("outside.effect", key=key)
