"""The op log: its chain and its verification."""
