"""The client of agents, and commands that go through it."""
