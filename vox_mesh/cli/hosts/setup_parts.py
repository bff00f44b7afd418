"""The parts of a setup: the mesh, identities of agents, files of hosts, the git guard and a node."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from vox_mesh.cli.hosts.agent_identity import (
    IdentityState,
    give_identity,
    identity_state,
    request_to_owner,
    take_token,
)
from vox_mesh.cli.hosts.background_node import LOG, is_node_running, start_node, stop_node
from vox_mesh.cli.hosts.guard_part import GuardPart
from vox_mesh.cli.init import is_owned, make_mesh, own_mesh
from vox_mesh.cli.support.recovery_keys import can_show
from vox_mesh.cli.support.session import run_on_mesh
from vox_mesh.errors import Refused
from vox_mesh.hosts.setup.documents.errors import DocumentRefused
from vox_mesh.hosts.setup.file_part import SetupState
from vox_mesh.hosts.setup.hook_plan import HookPlan, split_command
from vox_mesh.hosts.setup.host_paths import HOSTS, skill_path
from vox_mesh.hosts.setup.installer import (
    HookInstaller,
    interpreter,
    is_script_current,
)
from vox_mesh.hosts.setup.instructions import agents_md, skill
from vox_mesh.hosts.setup.mcp_entry import AGENT, McpPlan, configured_agent
from vox_mesh.hosts.setup.registry import HOSTS as HOOK_HOSTS
from vox_mesh.mesh import Mesh
from vox_mesh.nodes.agent_token_file import agent_token_file
from vox_mesh.settings import Settings
from vox_mesh.settings.discovery import has_marker
from vox_mesh.store.script import Outcome

_NOT_OWNER: Final = "not_the_owner"
_HIDDEN: Final = (AGENT, "VOX_AGENT_TOKEN", "VOX_AGENT_TOKEN_FILE")
"""Variables of an agent that runs the setup; a node has none of them."""


class SetupPart(Protocol):
    """A part of a setup."""

    @property
    def name(self) -> str: ...

    @property
    def where(self) -> str: ...

    def check(self) -> SetupState:
        """Return its state, without changing anything."""
        ...

    def apply(self) -> SetupState:
        """Make or refresh it."""
        ...

    def remove(self) -> SetupState:
        """Take it back."""
        ...


@dataclass(frozen=True)
class MeshPart:
    """The mesh of the project, with an owner."""

    settings: Settings
    as_json: bool = False
    name: str = "mesh"

    @property
    def where(self) -> str:
        return str(self.settings.home_dir.absolute())

    def check(self) -> SetupState:
        return SetupState.PRESENT if has_marker(self.settings.home_dir) else SetupState.MISSING

    def apply(self) -> SetupState:
        found = self.check()
        made: dict[str, Any] = asyncio.run(make_mesh(self.settings))
        self._take_ownership()
        if found is SetupState.MISSING:
            return SetupState.ADDED
        return SetupState.UPDATED if made["done"] == "upgraded" else SetupState.UNCHANGED

    def remove(self) -> SetupState:
        """Keep it: it holds the data of the agents."""
        return SetupState.KEPT if self.check() is SetupState.PRESENT else SetupState.ABSENT

    def _take_ownership(self) -> None:
        """Become the owner of a mesh that has none, with a recovery key if a person sees it."""
        if can_show(as_json=self.as_json):
            own_mesh(self.settings, None, as_json=self.as_json)
            return

        async def take(mesh: Mesh) -> Outcome | None:
            return None if await is_owned(mesh) else await mesh.roles.initialise()

        asyncio.run(run_on_mesh(self.settings, take))


@dataclass
class AgentPart:
    """The identity of a host's agent on the mesh."""

    settings: Settings
    agent: str
    requests: list[str] = field(default_factory=list)
    """What the owner of the mesh has to be asked for."""

    @property
    def name(self) -> str:
        return f"agent {self.agent}"

    @property
    def where(self) -> str:
        return str(agent_token_file(self._home, self.agent))

    @property
    def _home(self) -> Path:
        return self.settings.home_dir.absolute()

    def check(self) -> SetupState:
        if not has_marker(self._home):
            return SetupState.MISSING
        found = asyncio.run(
            run_on_mesh(self.settings, lambda mesh: identity_state(mesh, self._home, self.agent))
        )
        return _state_of(found)

    def apply(self) -> SetupState:
        had_token = agent_token_file(self._home, self.agent).exists()
        try:
            made = asyncio.run(
                run_on_mesh(self.settings, lambda mesh: give_identity(mesh, self._home, self.agent))
            )
        except Refused as error:
            if error.reason != _NOT_OWNER:
                raise
            self.requests.append(request_to_owner(self._home, self.agent))
            return SetupState.FAILED
        if not made:
            return SetupState.UNCHANGED
        return SetupState.UPDATED if had_token else SetupState.ADDED

    def remove(self) -> SetupState:
        """Revoke the token; what the agent has done stays, and so does its grant."""
        if not has_marker(self._home):
            return SetupState.ABSENT
        had = asyncio.run(run_on_mesh(self.settings, lambda mesh: take_token(mesh, self._home, self.agent)))
        return SetupState.REMOVED if had else SetupState.ABSENT


def _state_of(found: IdentityState) -> SetupState:
    if not found.missing:
        return SetupState.PRESENT
    return SetupState.OUTDATED if found.has_token or found.is_admitted else SetupState.MISSING


@dataclass(frozen=True)
class NodePart:
    """A node that answers the hooks."""

    home: Path
    project: Path
    starts: bool = True
    name: str = "node"

    @property
    def where(self) -> str:
        return str(self.home / LOG)

    def check(self) -> SetupState:
        return SetupState.PRESENT if is_node_running(self.home) else SetupState.MISSING

    def apply(self) -> SetupState:
        if is_node_running(self.home):
            return SetupState.UNCHANGED
        if not self.starts:
            return SetupState.MISSING
        variables = {name: value for name, value in os.environ.items() if name not in _HIDDEN}
        start_node(self.home, self.project, variables)
        return SetupState.ADDED

    def remove(self) -> SetupState:
        """Stop the node that the setup has started; others go on."""
        return SetupState.ABSENT if stop_node(self.home) is None else SetupState.REMOVED


@dataclass(frozen=True)
class HooksPart:
    """The hooks of a host, and their script in the home of the mesh."""

    installer: HookInstaller
    plan: HookPlan
    name: str = "hooks"

    @classmethod
    def of(cls, options: SetupOptions, host: str) -> HooksPart:
        """Return the hooks of a host; what the options leave open is kept."""
        project = None if options.for_user else options.project
        installer = HookInstaller(HOOK_HOSTS[host], project)
        installed = _installed_words(installer)
        plan = HookPlan(
            host,
            options.home,
            interpreter(),
            project,
            options.agents[host],
            "--auto" in installed if options.auto is None else options.auto,
            "--strict" in installed if options.strict is None else options.strict,
        )
        return cls(installer, plan)

    @property
    def where(self) -> str:
        return str(self.installer.file.path)

    def check(self) -> SetupState:
        text = self.installer.file.read()
        if text is None or self.installer.host.take(text) == text:
            return SetupState.MISSING
        is_current = self.installer.host.put(text, self.plan) == text and is_script_current(self.plan.script)
        return SetupState.PRESENT if is_current else SetupState.OUTDATED

    def apply(self) -> SetupState:
        found = self.check()
        self.installer.install(self.plan)
        return {SetupState.MISSING: SetupState.ADDED, SetupState.OUTDATED: SetupState.UPDATED}.get(
            found, SetupState.UNCHANGED
        )

    def remove(self) -> SetupState:
        return SetupState.REMOVED if self.installer.remove().changed else SetupState.ABSENT


def _installed_words(installer: HookInstaller) -> set[str]:
    """Return the words of the installed command lines; none if the file can't be read."""
    try:
        return {word for call in installer.calls() for word in split_command(call.command)}
    except DocumentRefused:
        return set()


@dataclass(frozen=True)
class SetupOptions:
    """What is set up, and where."""

    settings: Settings
    project: Path
    base: Path
    """The folder below which the files of hosts are: the project, or that of the user."""

    agents: dict[str, str]
    """The names of the agents, by host."""

    for_user: bool = False
    auto: bool | None = None
    """Whether hooks lock free files; `None`: as they do already."""

    strict: bool | None = None

    @property
    def home(self) -> Path:
        return self.settings.home_dir.absolute()


def host_parts(options: SetupOptions, host: str) -> list[SetupPart]:
    """Return the parts in the files of a host, without the shared ones."""
    server = McpPlan(host, options.agents[host], options.home, options.base, options.for_user)
    return [*server.parts(), HooksPart.of(options, host)]


def hosts_in_use(options: SetupOptions) -> list[str]:
    """Return the hosts that are set up in the same place, and are not among those of the options."""
    others = (host for host in HOSTS if host not in options.agents)
    return [
        host for host in others if configured_agent(host, options.base, for_user=options.for_user) is not None
    ]


def shared_parts(options: SetupOptions, others: Sequence[str] = ()) -> list[SetupPart]:
    """Return the parts that hosts share, without what the other hosts need."""
    kept = {skill_path(host, options.base) for host in others}
    paths = dict.fromkeys(skill_path(host, options.base) for host in options.agents)
    parts: list[SetupPart] = [
        skill(options.base, path, for_user=options.for_user) for path in paths if path not in kept
    ]
    return parts if others else [*parts, agents_md(options.project), *GuardPart.here()]
