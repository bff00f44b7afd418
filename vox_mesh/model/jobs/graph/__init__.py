"""Drawings of graphs of jobs: layers, the order in each, coordinates and lines."""
