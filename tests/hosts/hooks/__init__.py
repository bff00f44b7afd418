"""Tests of hooks: what hosts report, and what they are answered."""
