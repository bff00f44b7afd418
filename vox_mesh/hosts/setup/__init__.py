"""The configuration files of hosts: what belongs into them, and how it gets in and out again."""
