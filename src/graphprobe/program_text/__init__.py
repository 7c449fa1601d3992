"""A program as Python that a person can read."""
