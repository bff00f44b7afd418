"""The resources of MCP: an agent's inbox, a job, the locks; read on demand, and watched for changes."""
