"""What must hold of a history, whatever happened in it: one module for each kind of promise."""
