"""The handlers of a worker for the jobs of its coding agents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.util import find_spec

from vox_mesh.errors import BadSettings
from vox_mesh.jobs.agents.config import AgentMode, AgentsFile
from vox_mesh.jobs.agents.runner import AgentRunner
from vox_mesh.jobs.exec.policy import ExecPolicy
from vox_mesh.jobs.worker.handlers import Handler, HandlerSet


def agent_handlers(
    agents: AgentsFile,
    policy: ExecPolicy,
    timeout_of: Callable[[float], asyncio.Timeout] = asyncio.timeout,
) -> HandlerSet:
    """Return a handler for each kind. Raises `BadSettings` if an agent can't be run on this machine."""
    if find_spec("acp") is None and any(each.mode is AgentMode.ACP for each in agents.agents.values()):
        raise BadSettings("agents of mode acp need the extra acp", hint="install vox-mesh[acp]")
    handlers = HandlerSet()
    for kind, (name, config) in agents.by_kind.items():
        config.exec_secrets.take()
        handlers.add(Handler(kind, AgentRunner(name, config, policy, timeout_of), config.concurrency))
    return handlers
