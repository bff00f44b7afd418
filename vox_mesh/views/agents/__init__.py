"""Views of agents."""
