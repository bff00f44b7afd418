"""Tests of the operations on jobs."""
