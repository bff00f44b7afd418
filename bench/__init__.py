"""Benchmarks: what the store costs, with the raw limit beside it in the same run."""
