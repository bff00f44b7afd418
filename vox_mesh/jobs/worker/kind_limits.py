"""The limits of kinds that handlers declare, for the whole mesh."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vox_mesh.errors import MeshError

if TYPE_CHECKING:
    from vox_mesh.jobs.jobs import Jobs
    from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)


async def set_kind_limits(store: Store, jobs: Jobs, wanted: Mapping[str, int]) -> None:
    """Set how many jobs of each kind may run in the whole mesh, where it is not so already.

    A worker that may not set a limit, or can't now, works without it and logs that.
    """
    if not wanted:
        return
    from vox_mesh.jobs.kinds import JobKinds  # imported late: few handlers declare a limit

    kinds = JobKinds(store, jobs.queries, jobs.permits)
    try:
        present = {each.kind: each.max_running for each in await kinds.listed()}
        for kind, limit in wanted.items():
            if present.get(kind) != limit:
                await kinds.limit(kind, max_running=limit)
    except MeshError as error:
        _log.warning("limits of kinds not set: kinds=%s: %s", ",".join(sorted(wanted)), error.line)
