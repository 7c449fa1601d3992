"""The command line: parsing, exit codes and printing only. The commands are in `commands`, what they share is here."""
