"""Reading a resource for a caller: by the operations that its tools use, so with the same checks."""

from __future__ import annotations

from typing import Any, Final

from vox_mesh.hosts.mcp.caller import OperationFailed, ToolCaller
from vox_mesh.hosts.mcp.resources.addresses import ResourceAddress, ResourceKind
from vox_mesh.hosts.mcp.rows import lock_row, message_row, page_of
from vox_mesh.hosts.mcp.tool_call import ToolCall
from vox_mesh.hosts.mcp.tools.overview import whole_job_row

_LIMIT: Final = "50"


async def read_resource(address: ResourceAddress, caller: ToolCaller) -> dict[str, Any]:
    """Return the content of a resource; text of other agents is fenced.

    Raises `OperationFailed` if the caller may not read it, or there is none.
    """
    check_own(address, caller)
    call = ToolCall(caller, {})
    if address.kind is ResourceKind.JOB:
        return whole_job_row(call, await caller.perform("show_job", path={"job": address.name}))
    query = {"limit": _LIMIT}
    if address.kind is ResourceKind.INBOX:
        page = await caller.perform("look_into_inbox", path={"agent": address.name}, query=query)
        return page_of("messages", page, (message_row(call, each) for each in page["items"]))
    page = await caller.perform("list_locks", query=query)
    return page_of("locks", page, (lock_row(each) for each in page["items"]))


def check_own(address: ResourceAddress, caller: ToolCaller) -> None:
    """Raise `OperationFailed` if the resource is the inbox of another agent than the caller's."""
    if address.kind is ResourceKind.INBOX and address.name != caller.agent:
        raise OperationFailed(
            "not_own_inbox",
            f"agent may read its own inbox only, got {address.name[:64]!r}",
            "list the resources to see yours",
        )
