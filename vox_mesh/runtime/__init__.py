"""What turns a store into a running node: services, supervision, health."""
