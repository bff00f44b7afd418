"""A fleet with something of everything, for tests, screenshots and measurements of the web console."""
