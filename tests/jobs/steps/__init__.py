"""Durable steps."""
