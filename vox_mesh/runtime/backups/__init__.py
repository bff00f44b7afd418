"""Scheduled backups: one node at a time copies the database to a folder or a bucket."""
