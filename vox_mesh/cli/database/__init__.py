"""Commands for the database: its state, backups, replicas, the op log and conflicts."""
