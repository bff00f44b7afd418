"""What a thing looks like to those who ask: the same for the command line, the service and the screen."""
