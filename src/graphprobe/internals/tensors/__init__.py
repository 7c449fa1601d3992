"""Tensors, their memory, and the containers that hold them."""
