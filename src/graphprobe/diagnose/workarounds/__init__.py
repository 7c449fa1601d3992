"""Finds changes of the program with which it is right, until a fault is mended: each is tried before it is told."""
