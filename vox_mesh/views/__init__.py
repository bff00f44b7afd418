"""Views: how objects are presented, the same for the command line, the HTTP service and the screen."""
