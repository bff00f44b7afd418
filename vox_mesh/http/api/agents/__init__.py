"""Operations of agents: who they are, and what they see at a glance."""
