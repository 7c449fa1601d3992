"""How long the steps of a compile take, and when each begins."""
