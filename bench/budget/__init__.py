"""The budget of each hot path: where its processor time goes, and the floor under it."""
