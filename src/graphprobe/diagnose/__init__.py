"""Finds which stage, pass and op make a compiled program differ from the same program uncompiled, and proves it."""
