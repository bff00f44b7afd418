"""The coding agents that the settings of a node choose."""

from __future__ import annotations

import logging

from vox_mesh.jobs.worker.handlers import HandlerSet
from vox_mesh.runtime.exec_policy import ADVICE, exec_policy_of
from vox_mesh.settings import Settings

_log = logging.getLogger(__name__)


def agent_kinds(settings: Settings) -> frozenset[str]:
    """Return the kinds of jobs of a node's agents. Raises `BadSettings` if their file can't be used."""
    if settings.worker_agents is None:
        return frozenset()
    from vox_mesh.jobs.agents.config import read_agents  # imported late: few nodes have agents

    return frozenset(read_agents(settings.worker_agents).by_kind)


def open_agents(settings: Settings) -> HandlerSet:
    """Return the handlers of a node's agents: warn if they are not isolated, and hide their secrets."""
    if settings.worker_agents is None:
        return HandlerSet()
    from vox_mesh.jobs.agents.config import read_agents  # imported late: few nodes have agents
    from vox_mesh.jobs.agents.handlers import agent_handlers

    policy = exec_policy_of(settings)
    if not policy.isolation.is_isolated:
        _log.warning("agents not isolated: %s; %s", policy.isolation.describe(), ADVICE)
    return agent_handlers(read_agents(settings.worker_agents), policy)
