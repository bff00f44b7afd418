"""Durable steps: results of parts of a job, which are stored once and returned to every later attempt."""
