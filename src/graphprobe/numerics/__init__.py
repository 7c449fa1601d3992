"""Numbers without torch: dtype facts, the noise of each element, distances in units of it, and the four verdicts."""
