"""Watches a running program: sessions, graphs and passes, launches, and the inputs of compiled graphs."""
