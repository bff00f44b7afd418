"""Support for tests of the MCP server: fixtures of the conformance suite, its runner, clients."""
