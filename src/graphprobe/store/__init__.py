"""Bytes on disk: where a run's files lie, how they are written, how they are read back."""
