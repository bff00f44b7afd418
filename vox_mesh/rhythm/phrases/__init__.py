"""Phrases: work measured in bars, from start to recorded end."""
