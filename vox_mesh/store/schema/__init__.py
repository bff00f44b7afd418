"""The schema: migrations, named statements, shape, backup and repair."""
