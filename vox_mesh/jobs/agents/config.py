"""The coding agents that a worker may run: its file of agents, which only its owner can write.

A job names an agent, and never the command that is run.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from vox_mesh.errors import BadDocument, BadSettings, BadValue
from vox_mesh.jobs.exec.secrets import ExecSecrets
from vox_mesh.model.base.durations import milliseconds
from vox_mesh.model.documents.validation import FROM_LIST, flaw, read_model
from vox_mesh.model.messages.records import checked_agent
from vox_mesh.settings.ownership import ownership_fault, ownership_hint

AGENT: Final = "agent"
"""The kind of jobs for the default agent; others are `agent.NAME`."""

_SETTING: Final = "VOX_WORKER_AGENTS"
_MAX_BYTES: Final = 2**20
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_NEVER: Final = ("VOX_", "TURSO_", "LD_", "DYLD_")
_STRICT: Final = ConfigDict(frozen=True, strict=True, extra="forbid")


class BadAgents(BadDocument):
    """The file of agents has faults."""

    code = "bad_agents"


class AgentMode(StrEnum):
    """How an agent is run."""

    ACP = "acp"
    COMMAND = "command"


class PermissionDecision(StrEnum):
    """What is done about a permission that an agent asks for."""

    ALLOW = "allow"
    DENY = "deny"
    ASK = "ask"


class ToolKind(StrEnum):
    """The kinds of tools of the protocol, as an agent names them."""

    READ = "read"
    EDIT = "edit"
    DELETE = "delete"
    MOVE = "move"
    SEARCH = "search"
    EXECUTE = "execute"
    THINK = "think"
    FETCH = "fetch"
    SWITCH_MODE = "switch_mode"
    OTHER = "other"


def _seconds(value: object) -> float:
    try:
        return milliseconds(value) / 1_000
    except ValueError as error:
        raise flaw(str(error)) from None


def _agent(name: str) -> str:
    try:
        return checked_agent(name)
    except BadValue as error:
        raise flaw(str(error)) from None


def _absolute(value: object) -> Path:
    path = Path(value) if isinstance(value, str) else None
    if path is None or not path.is_absolute():
        raise flaw(f"must be an absolute path, got {value!r}")
    return path


def _variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name) or name.startswith(_NEVER):
        raise flaw(f"must be a variable that does not begin with {', '.join(_NEVER)}, got {name!r}")
    return name


def _secret(text: str) -> str:
    try:
        ExecSecrets.parsed(text)
    except BadSettings as error:
        raise flaw(str(error).partition(": ")[2]) from None
    return text


def _decision(value: object) -> object:
    return PermissionDecision(value) if isinstance(value, str) and value in set(PermissionDecision) else value


def _tool_kind(value: object) -> object:
    return ToolKind(value) if isinstance(value, str) and value in set(ToolKind) else value


def _mode(value: object) -> object:
    return AgentMode(value) if isinstance(value, str) and value in set(AgentMode) else value


Seconds = Annotated[float, BeforeValidator(_seconds)]
AbsolutePath = Annotated[Path, BeforeValidator(_absolute)]
Variable = Annotated[str, AfterValidator(_variable)]
Kinds = tuple[Annotated[ToolKind, BeforeValidator(_tool_kind)], ...]


class MeshAccess(BaseModel):
    """How an agent reaches the mesh as an MCP server: with a token of its own, and nothing else."""

    model_config = _STRICT

    agent_id: Annotated[str, AfterValidator(_agent)]
    token_file: AbsolutePath
    node: str = Field(min_length=1, max_length=512)
    """The address of a node, as VOX_MESH_NODE."""
    profile: str = Field("work", pattern=r"^(work|mail|read)$")


class AgentConfig(BaseModel):
    """One coding agent: its command, and what it may do."""

    model_config = _STRICT

    command: Annotated[tuple[str, ...], FROM_LIST, Field(min_length=1, max_length=64)]
    mode: Annotated[AgentMode, BeforeValidator(_mode)] = AgentMode.ACP
    folder: AbsolutePath | None = None
    """Below it, each attempt has a folder; `None` for a private one among the temporary files."""
    repositories: Annotated[tuple[AbsolutePath, ...], FROM_LIST, Field(max_length=256)] = ()
    """The repositories of which a job may ask for a worktree."""
    keep: bool = False
    """Whether folders are kept at the end."""
    home: AbsolutePath | None = None
    """The agent's HOME; `None` for an empty one that is removed."""
    env: Annotated[tuple[Variable, ...], FROM_LIST, Field(max_length=64)] = ()
    """The variables of the worker that the agent gets."""
    variables: Mapping[Variable, str] = Field(default_factory=dict)
    """Variables that are set for the agent."""
    secrets: Annotated[
        tuple[Annotated[str, AfterValidator(_secret)], ...], FROM_LIST, Field(max_length=64)
    ] = ()
    """Secrets of the worker that the agent gets: `NAME` or `NAME=/path`; they are removed from its output."""
    allow: Annotated[Kinds, FROM_LIST] = ()
    deny: Annotated[Kinds, FROM_LIST] = ()
    otherwise: Annotated[PermissionDecision, BeforeValidator(_decision)] = PermissionDecision.ASK
    ask: Annotated[str, AfterValidator(_agent)] | None = None
    """The agent or person that gets the questions by a message."""
    ask_within: Annotated[Seconds, Field(ge=1, le=2_592_000)] = 86_400.0
    timeout: Annotated[Seconds, Field(ge=1, le=604_800)] = 3_600.0
    """The maximum duration of an attempt, in seconds."""
    concurrency: int = Field(1, ge=1, le=100)
    model: str | None = Field(None, min_length=1, max_length=128)
    """The model that its tokens are charged to, if the agent reports them; `None` for the agent's name."""
    mesh: MeshAccess | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> AgentConfig:
        if both := set(self.allow) & set(self.deny):
            raise flaw(f"{min(both)} must be in allow or in deny, not in both")
        if any("\0" in each or not each for each in self.command):
            raise flaw("command must have no empty words and no NUL")
        return self

    def decision_for(self, kind: str) -> PermissionDecision:
        """Return what is done about a permission for a kind of tool."""
        if kind in set(self.deny):
            return PermissionDecision.DENY
        return PermissionDecision.ALLOW if kind in set(self.allow) else self.otherwise

    @property
    def exec_secrets(self) -> ExecSecrets:
        """Return where its secrets are."""
        return ExecSecrets.parsed(",".join(self.secrets))


class AgentsFile(BaseModel):
    """The agents of a worker, by name, and the default one."""

    model_config = _STRICT

    agents: Mapping[str, AgentConfig] = Field(min_length=1, max_length=64)
    default: str | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> AgentsFile:
        for name in self.agents:
            if not _NAME.fullmatch(name):
                raise flaw(f"each name must be up to 32 of a-z, 0-9, _ and -, got {name!r}")
        if self.default is not None and self.default not in self.agents:
            raise flaw(f"default must be one of the agents, got {self.default!r}")
        return self

    @property
    def by_kind(self) -> dict[str, tuple[str, AgentConfig]]:
        """Return the agents by the kinds of their jobs. A single agent is the default one."""
        kinds = {f"{AGENT}.{name}": (name, each) for name, each in self.agents.items()}
        default = self.default or (next(iter(self.agents)) if len(self.agents) == 1 else None)
        return kinds if default is None else {AGENT: (default, self.agents[default]), **kinds}


def read_agents(path: Path) -> AgentsFile:
    """Read a file of agents. Raises `BadSettings` or `BadAgents`.

    The file decides what runs: it must be one that other users can't write.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
                raise BadSettings(
                    f"{_SETTING}: {path} must be a file of at most {_MAX_BYTES} bytes",
                    hint="name a YAML file with the agents",
                )
            if (fault := ownership_fault(path, status)) is not None:
                raise BadSettings(f"{_SETTING}: {fault}", hint=ownership_hint(path, status))
            text = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise BadSettings(
            f"{_SETTING}: {path} can't be read: {error.strerror}", hint="name a YAML file with the agents"
        ) from None
    return read_model(AgentsFile, text, str(path), called="file of agents", bad=BadAgents)
