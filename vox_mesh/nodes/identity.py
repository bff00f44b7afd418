"""Identity: the id and the key of a node, kept in its slot; and the machine this process runs on."""

from __future__ import annotations

import hashlib
import random
import re
import socket
import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from vox_mesh.errors import BadSettings, DatabaseFault, KeyRefused, NodeNotAdmitted
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.oplog.chain import COMMANDS
from vox_mesh.store.files import load_or_create, make_private
from vox_mesh.store.slots import ID_FILE, slots

_KEY_FILE: Final = "key.pem"
_ID_CHARACTERS: Final = "23456789abcdefghjkmnpqrstuvwxyz"


class Identity(NamedTuple):
    """The identity of a writer: a node, its key, and the chain it writes in."""

    node_id: str
    key: SigningKey
    chain: str

    @property
    def is_command(self) -> bool:
        """Return whether this is a command, which shares its node's id and is no node itself."""
        return self.chain != self.node_id


def node_identity(folder: Path, node_id: str | None) -> Identity:
    """Return the identity kept in a slot, created at first use."""
    node_id, key = _load(folder, node_id)
    return Identity(node_id, key, node_id)


def command_identity(folder: Path, node_id: str | None) -> Identity:
    """Return the identity of a command of that slot's node: the node's key, and a chain of its own."""
    node_id, key = _load(folder, node_id)
    return Identity(node_id, key, node_id + COMMANDS)


def find_identity(folder: Path) -> Identity | None:
    """Return the identity kept in a slot, or `None`; nothing is created."""
    if not ((folder / ID_FILE).exists() and (folder / _KEY_FILE).exists()):
        return None
    return node_identity(folder, None)


def local_identities(home: Path) -> list[Identity]:
    """Return the identities of all nodes of a home."""
    return [found for folder in sorted(slots(home)) if (found := find_identity(folder)) is not None]


def temporary_identity(node_id: str, keys: dict[str, SigningKey] | None = None) -> Identity:
    """Return an identity that lasts as long as the process, or as `keys`."""
    from vox_mesh.nodes.key_file import new_key

    keys = {} if keys is None else keys
    if node_id not in keys:
        keys[node_id] = SigningKey(new_key())
    return Identity(node_id, keys[node_id], node_id)


def _load(folder: Path, node_id: str | None) -> tuple[str, SigningKey]:
    from vox_mesh.nodes.key_file import load_or_create_key  # a read-only command needs no key

    try:
        make_private(folder)
        kept = load_or_create(folder / ID_FILE, lambda: (node_id or _new_id(folder.name)).encode() + b"\n")
        return node_id or kept.decode().strip(), load_or_create_key(folder / _KEY_FILE)
    except OSError as error:
        raise BadSettings(
            f"VOX_MESH_HOME: {folder} can't be used: {error.strerror}",
            hint="set it to a writable folder, such as VOX_MESH_HOME=.vox",
        ) from None


def _new_id(slot: str) -> str:
    """Return a recognisable name that no other machine has."""
    host = re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname().split(".")[0]).strip("-").lower()[:24]
    chance = random.SystemRandom()
    return f"{host or 'node'}-{slot}-" + "".join(chance.choice(_ID_CHARACTERS) for _ in range(6))


@cache
def machine_id() -> str:
    """Return an id shared exactly by the processes that reach each other over loopback."""
    return hashlib.sha256(f"{_installation()} {_network()}".encode()).hexdigest()[:16]


def _installation() -> str:
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        if found := _text(Path(path).read_text):
            return found
    return f"{socket.gethostname()} {uuid.getnode():x}"


def _network() -> str:
    """Return the network namespace: containers may share everything else."""
    return _text(lambda: str(Path("/proc/self/ns/net").readlink()))


def _text(read: Callable[[], str]) -> str:
    try:
        return read().strip()
    except OSError:
        return ""


def place_of(folder: Path) -> str:
    """Return what tells a slot from all others, including copies of its folder."""
    # Not the network: a restarted container has another one.
    lock = (folder / "lock").stat()
    machine = hashlib.sha256(_installation().encode()).hexdigest()[:16]
    return f"{machine}:{lock.st_dev}:{lock.st_ino}"


def planted_counters(node_id: str) -> DatabaseFault:
    """Return the error for a node whose counters in the database are no numbers that any node counts to."""
    return DatabaseFault(
        f"node {node_id} can't write: its counters in the database are no integers below 2^53",
        hint="no node has written that: restore the database, or choose another VOX_MESH_NODE_ID",
    )


def key_refused(node_id: str, key: str) -> KeyRefused:
    """Return the error for a node that is known with another key."""
    return KeyRefused(
        f"node {node_id} is known with another key than {key}",
        hint=f"put its key back, or have the owner run `vox-mesh nodes rekey {node_id}`",
    )


def not_admitted(node_id: str, key: str) -> NodeNotAdmitted:
    """Return the error for a node that the owner of a strict mesh has not admitted."""
    return NodeNotAdmitted(
        f"node {node_id} can't join: the mesh is strict, and its owner has not admitted this node",
        hint=f"have the owner run `vox-mesh nodes admit {node_id} --key {key}`",
    )
