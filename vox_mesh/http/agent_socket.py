"""The unix socket of a node for agents under other users: the user who connects is the agent."""

from __future__ import annotations

import grp
import os
import pwd
import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from vox_mesh.errors import BadSettings, BadValue
from vox_mesh.http.local_socket import LocalSocket
from vox_mesh.model.base.reserved import refuse_person_agent
from vox_mesh.model.messages.records import checked_agent
from vox_mesh.settings import Settings

_WITHOUT: Final = "agents under other users can't connect"
_MODE: Final = 0o660
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_ROOT: Final = 0
_EXAMPLE: Final = "for example VOX_MESH_AGENT_UIDS=1001=coder,tester=tester"


class AgentSocket(LocalSocket):
    """A socket that the members of a group can connect to, each as the agent of its user."""

    def __init__(self, path: Path, agents: Mapping[int, str], group_id: int | None = None) -> None:
        super().__init__(path.parent, path.name, _WITHOUT)
        self.agents = agents
        """The agent of each user."""
        self._group_id = group_id

    def _prepare_folder(self) -> None:
        """Check that only this user and root could replace the socket, and that no process serves it."""
        found = self.path.parent.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(0, "its folder is a link or a file")
        if found.st_uid not in (os.geteuid(), _ROOT) or stat.S_IMODE(found.st_mode) & _OTHERS_WRITE:
            raise PermissionError(0, "other users may write to its folder")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            if probe.connect_ex(str(self.path)) == 0:
                raise FileExistsError(0, "another process listens there")

    def _let_in(self, draft: Path) -> None:
        """Let the group in. A folder with the setgid bit may have given it to the socket already."""
        if self._group_id is not None and draft.lstat().st_gid != self._group_id:
            os.chown(draft, -1, self._group_id, follow_symlinks=False)
        draft.chmod(_MODE)


def agent_socket_of(settings: Settings) -> AgentSocket | None:
    """Return the socket that the settings ask for. Raises `BadSettings` for an unknown group or user."""
    if settings.agent_socket is None:
        return None
    agents = parse_agents(settings.agent_uids or "")
    return AgentSocket(settings.agent_socket, agents, _group_id(settings.agent_socket_group))


def parse_agents(text: str) -> dict[int, str]:
    """Return the agent of each user, from text such as `1001=coder,tester=tester`."""
    agents: dict[int, str] = {}
    for entry in filter(None, (each.strip() for each in text.split(","))):
        user, separator, agent = entry.partition("=")
        if not (user and separator):
            raise BadSettings(f"VOX_MESH_AGENT_UIDS must be USER=AGENT, got {entry!r}", hint=_EXAMPLE)
        user_id = _user_id(user)
        if user_id in agents:
            raise BadSettings(f"VOX_MESH_AGENT_UIDS must name user {user} once", hint="remove one of both")
        try:
            refuse_person_agent(agent)
            agents[user_id] = checked_agent(agent)
        except BadValue as error:
            raise BadSettings(f"VOX_MESH_AGENT_UIDS: {error}", hint=_EXAMPLE) from None
    return agents


def _user_id(text: str) -> int:
    if text.isdecimal():
        return int(text)
    try:
        return pwd.getpwnam(text).pw_uid
    except KeyError:
        raise BadSettings(
            f"VOX_MESH_AGENT_UIDS: user {text!r} not found", hint="create the user, or pass its uid"
        ) from None


def _group_id(name: str | None) -> int | None:
    if name is None or name.isdecimal():
        return None if name is None else int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise BadSettings(
            f"VOX_MESH_AGENT_SOCKET_GROUP: group {name!r} not found", hint="create it with `groupadd`"
        ) from None
