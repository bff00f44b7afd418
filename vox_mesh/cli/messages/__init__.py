"""Commands for sending and receiving messages."""
