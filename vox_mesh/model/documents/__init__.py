"""Documents that people write: YAML, JSON and their validation."""
