"""The write path: idempotency keys, group commit, retries, circuit breaker."""
