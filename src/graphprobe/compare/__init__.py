"""Comparison of two dumps: pair their calls, judge each pair in units of noise, name the first that goes wrong."""
