"""Principals: who a request is from, and how it proves it; pure."""
