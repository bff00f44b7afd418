"""Messages between agents: durable inboxes, with an optional relay between nodes."""
