"""A self-hosted libSQL server: its binary, the extension that makes it safe, and how it is started."""
