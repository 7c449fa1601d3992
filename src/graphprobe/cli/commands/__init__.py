"""The commands, one a file: what is typed, and what is told. Each has its click command as `command`."""
