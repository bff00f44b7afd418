"""Planted bugs: changes of the product that must be found, or the instruments prove nothing."""
