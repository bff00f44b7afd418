"""Many nodes in one process, on a simulated clock: a seed decides the order of all steps and the faults."""
