"""Inductor's IR: read into records, put into words, and evaluated in plain torch."""
