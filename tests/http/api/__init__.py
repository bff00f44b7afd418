"""Tests of the operations over HTTP."""
