"""Errors of jobs that coding agents do."""

from __future__ import annotations

from vox_mesh.errors import MeshError
from vox_mesh.jobs.worker.attempt import GiveUp


class AgentFailed(MeshError):
    """A coding agent did not do its job: it crashed, hung, stopped early or broke a bound."""

    code = "agent_failed"


class AgentJobRefused(GiveUp):
    """The payload of a job is none that this worker gives to an agent; another attempt would not help."""
