"""Jobs that a coding agent does, by the Agent Client Protocol or as a plain command."""
