"""Results of tools as the protocol has them. It imports the SDK."""

from __future__ import annotations

from mcp_types import CallToolResult, TextContent

from vox_mesh.hosts.mcp.toolbox import ToolResult


def call_result(result: ToolResult) -> CallToolResult:
    """Return the result of a tool as the protocol has it; an error is one line of text."""
    return CallToolResult(
        content=[TextContent(text=result.text)],
        structured_content=result.content,
        is_error=result.error is not None,
    )
