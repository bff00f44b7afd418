"""Frameworks: one module each, which needs the extra of the same name and is imported by its users only."""
