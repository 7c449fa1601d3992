"""A graph break in the middle of a function, and a recompilation for another dtype."""

import torch


@torch.compile
def scaled(x: torch.Tensor) -> torch.Tensor:
    y = torch.sin(x) * 2
    if y.sum() > 0:  # breaks the graph
        return torch.cos(y)
    return torch.tanh(y) - 1


print(scaled(torch.full((4,), 0.5)).sum().item())
print(scaled(torch.full((4,), 0.5, dtype=torch.float64)).sum().item())
