"""Searches for the operation to blame, each for one kind of failure; of graphs that are equal, one is searched."""
