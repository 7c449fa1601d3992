"""The ways into the compiler beside `torch.compile`: what was exported, traced or packaged, diagnosed."""
