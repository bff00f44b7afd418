"""The job plane: work that runs once, on the right node, with proof."""
