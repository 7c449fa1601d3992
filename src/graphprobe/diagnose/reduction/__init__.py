"""Reduction of a failing case: smaller graphs that fail in the same way."""
