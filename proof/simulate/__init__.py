"""Many nodes in one process, on a clock that is told: what happens next is drawn from a seed."""
