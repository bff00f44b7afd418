"""Support for tests of the web console."""
