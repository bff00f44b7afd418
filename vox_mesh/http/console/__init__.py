"""The web console of a node: its files, and the sessions of people who use it."""
