"""Dynamo: what it compiles, where it breaks, compiles anew or fails, and who stands in for torch.compile."""
