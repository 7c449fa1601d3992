"""The generic reducer: the smallest case that still fails in the same way. It knows neither torch nor graphs."""
