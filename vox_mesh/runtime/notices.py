"""Notices: messages that the mesh sends to agents on behalf of jobs and conflicts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from vox_mesh.errors import MeshError
from vox_mesh.messages.messages import Messages
from vox_mesh.occ.conflicts import Conflict
from vox_mesh.oplog.grants.permit import MESH_PERMIT

_log = logging.getLogger(__name__)


async def send_question(messages: Messages, agent: str, question: Mapping[str, Any], sender: str) -> None:
    """Send a question of a job to the agent that is asked."""
    await messages.send(agent, dict(question), sender=sender, msg_type="question", permit=MESH_PERMIT)


async def notify_of_conflict(messages: Messages, conflict: Conflict) -> None:
    """Notify the agent that a conflict was deferred to. The conflict is recorded even if this fails."""
    if conflict.deferred_to is None:
        return
    body = {
        "conflict_id": conflict.conflict_id,
        "table_name": conflict.table_name,
        "row_key": conflict.row_key,
    }
    try:
        await messages.send(conflict.deferred_to, body, msg_type="conflict", permit=MESH_PERMIT)
    except MeshError as error:
        _log.warning("conflict notification failed: agent=%s: %s", conflict.deferred_to, error.line)
