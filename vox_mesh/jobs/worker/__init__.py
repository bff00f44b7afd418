"""The worker: it claims jobs, runs their handlers and completes them."""
