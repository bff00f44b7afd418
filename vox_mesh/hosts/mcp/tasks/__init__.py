"""Durable tasks of MCP clients: a job that `submit` schedules, followed by an id at any node."""
