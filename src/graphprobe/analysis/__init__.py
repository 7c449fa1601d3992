"""Conclusions from the facts of a compile: graph breaks, recompilations, where time went, what a log says. No torch."""
