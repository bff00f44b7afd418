"""Phrases: work in bars, from its start to its recording."""
