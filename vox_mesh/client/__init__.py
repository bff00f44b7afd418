"""The client of agents: they speak to a node, and hold neither its key nor the token of the database."""

from vox_mesh.client.agent_client import AgentClient

__all__ = ["AgentClient"]
