"""Commands for hosts of agents: hooks, MCP and setup."""
