"""Documents written by people: YAML, JSON and their validation."""
