"""Services that bring what one process sends to another: messages, or jobs that do nothing."""
