"""Messages: records and states."""
