"""MCP over stdin and stdout: a thin pipe to the node. It does without the SDK, so it starts at once."""
