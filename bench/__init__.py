"""Benchmarks: what the mesh costs, compared with the raw limit measured in the same run."""
