"""Help: requests and promises between agents."""
