"""Help: what nodes promise each other."""
