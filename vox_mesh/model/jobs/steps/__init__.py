"""Durable steps: their records, links and waits."""
