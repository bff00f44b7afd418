"""Code that all commands share: options, output, exit codes, logs, sessions."""
