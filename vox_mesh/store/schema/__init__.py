"""Manage the schema: migrations, named statements, shape, backup and repair."""
