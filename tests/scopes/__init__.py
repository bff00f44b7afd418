"""Tests of several scopes, each in a database of its own."""
