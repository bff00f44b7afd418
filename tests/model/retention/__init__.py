"""The policies of retention, and which rows may go."""
