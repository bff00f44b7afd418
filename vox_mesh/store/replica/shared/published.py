"""What the process that follows the primary tells the processes that read its copy."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vox_mesh.store.files import open_private
from vox_mesh.store.replica.record_file import encode, read_file


def state_of(path: Path) -> Path:
    """Return the path of the file in which the follower of a shared copy publishes its state."""
    return Path(f"{path}.state")


@dataclass(frozen=True, slots=True)
class Published:
    """The state of a shared copy. Times are of the machine's monotonic clock; 0 means never.

    `host` identifies that clock. `inode`, `log_id` and `start_overs` identify the copy, which has the frames
    before `next_frame`, of `end` in all. `session` is the run of the primary that is followed, whose log this
    was at `hello_at`. `commits` counts what was applied, `other_commits` without heartbeats.
    """

    host: str
    pid: int
    inode: int
    log_id: str
    start_overs: int
    next_frame: int
    end: int
    session: str
    is_readable: bool
    is_pushed: bool
    state: str
    error: str
    as_of: float
    hello_at: float
    commits: int
    other_commits: int
    bytes: int
    snapshots: int
    fetched_bytes: int

    @property
    def copy_id(self) -> tuple[int, str, int]:
        """Return what differs after the copy was dropped and fetched again."""
        return self.inode, self.log_id, self.start_overs


def read_published(path: Path) -> Published | None:
    """Return what the follower of the copy at `path` has published last; `None` without any."""
    return read_file(state_of(path), Published)


class Publisher:
    """Writes the state of a copy, of which this process is the follower."""

    def __init__(self, path: Path) -> None:
        self._path = state_of(path)
        self._descriptor = open_private(self._path)

    def publish(self, state: Published) -> None:
        """Write the state, which wakes the readers."""
        self._reopen_if_replaced()
        os.pwrite(self._descriptor, encode(state), 0)

    def _reopen_if_replaced(self) -> None:
        with suppress(FileNotFoundError):
            if self._path.lstat().st_ino == os.fstat(self._descriptor).st_ino:
                return
        replaced, self._descriptor = self._descriptor, open_private(self._path)
        os.close(replaced)

    def close(self) -> None:
        """Close the file, which tells the readers that nothing follows."""
        os.close(self._descriptor)
