"""Messages between agents: durable inboxes, brought by a relay where there is one."""
