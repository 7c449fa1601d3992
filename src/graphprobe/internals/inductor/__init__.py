"""Inductor: its stages, passes and lowering."""
