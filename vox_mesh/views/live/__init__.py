"""Views of what changes all the time: what needs a person, the progress of jobs, the health of a node."""
