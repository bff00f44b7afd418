"""The spool: writes kept on disk while the server is away."""
