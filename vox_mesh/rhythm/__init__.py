"""Rhythm: a shared tempo derived from the database's clock, and everything measured in beats."""
