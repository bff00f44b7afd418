"""A month of a fleet in minutes: what a database that is pruned and archived comes to."""
