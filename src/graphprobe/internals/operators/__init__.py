"""Operators and calls of torch's API while they run, and the autograd graph around them."""
