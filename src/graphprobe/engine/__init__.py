"""Runs captured graphs: capture of real values, and the replay code that generated scripts carry."""
