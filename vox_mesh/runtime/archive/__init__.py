"""The daily pass of the archive: one leader verifies the log, and archives what is old."""
