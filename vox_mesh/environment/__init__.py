"""The surroundings of a process: its secrets, its folder, and what other processes can see of it."""
