"""What attempts leave for later ones: durable steps and checkpoints, signed by the worker."""
