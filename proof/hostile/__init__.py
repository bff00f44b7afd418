"""Attacks on a real mesh: hostile requests to every endpoint, and hostile rows in every table."""
