"""A job that an agent has taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from vox_mesh.model.jobs.records import Job


class TakenJob(NamedTuple):
    """A job that an agent has taken. It needs the claim token to renew and to report."""

    job: Job
    agent: str
    lease_ms: int
    lease_until_ms: int
    """When the job goes back to the queue unless it is renewed or reported before."""
    core: Mapping[str, Any]
    """The core of the manifest, with the outputs of predecessors where its bindings say."""
    checkpoint: Any = None
    """The last checkpoint of an earlier attempt."""
    answer: Any = None
    """The answer to the last question of an earlier attempt."""

    @property
    def claim_token(self) -> int:
        """Return the token of the claim."""
        return self.job.claim_token

    @property
    def payload(self) -> Any:
        """Return the payload."""
        return self.core.get("payload")
