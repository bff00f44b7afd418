"""The archive of the log: segments in files, elsewhere than the database."""
