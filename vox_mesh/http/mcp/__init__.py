"""MCP over HTTP: the tools of agents at `/mcp` of a node."""
