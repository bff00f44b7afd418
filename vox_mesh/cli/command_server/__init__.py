"""Commands next to a node: forked from a process that has everything loaded, instead of started."""
