"""Views of the dependencies of jobs: graphs and their drawings."""
