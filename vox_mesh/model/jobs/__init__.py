"""Jobs: states, manifests, retries, proof and the choice of a node."""
