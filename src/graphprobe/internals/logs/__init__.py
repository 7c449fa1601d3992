"""torch's own logs, and the names by which they are asked for."""
