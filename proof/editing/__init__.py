"""Scripted agents edit one repository over MCP and hooks; one is killed, and one ignores denials."""
