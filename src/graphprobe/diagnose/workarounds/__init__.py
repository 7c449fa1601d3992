"""Finds changes of the program with which it is right, until a fault is fixed: each is tried before it is named."""
