"""Views of what jobs depend on: graphs, their drawings, and the ops that led to a job."""
