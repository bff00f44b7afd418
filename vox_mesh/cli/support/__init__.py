"""What all commands share: options, output, exit codes, sessions."""
