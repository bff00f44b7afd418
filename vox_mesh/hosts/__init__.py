"""Hosts of agents, such as Claude Code or Codex: what they ask a node, and their configuration files."""
