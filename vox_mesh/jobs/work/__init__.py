"""The work API: an agent takes jobs, and reports how they went, through a node that claims on its behalf."""
