"""The context of log lines, traces and spans."""
