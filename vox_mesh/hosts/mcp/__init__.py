"""The tools of MCP: few, with flat schemas and short answers. Only `server` and `stdio` import the SDK."""
