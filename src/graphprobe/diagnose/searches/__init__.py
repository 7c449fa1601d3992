"""Searches for the operation to blame, each for one kind of failure; the steps run them.

Of graphs that are equal, one is searched.
"""
