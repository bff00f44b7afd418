"""Jobs that run a command in a process group of its own."""
