"""The write path: idempotent requests, group commit, retries, circuit breaker."""
