"""The MCP server: its tools, its transports, and who may use them."""
