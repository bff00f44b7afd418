"""What must hold of every history: one module for each kind of promise."""
