"""The command line: one file per command; parsing, exit codes and printing only."""
