"""What nodes do with the mesh during a run: one module for each workload."""
