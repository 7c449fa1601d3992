"""A program with torch.cond, taken both ways."""

import torch


def grow(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def shrink(x: torch.Tensor) -> torch.Tensor:
    return x.sin() / 2


@torch.compile
def choose(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, grow, shrink, (x,)) - 1


print(choose(torch.arange(4.0)).tolist())
print(choose(-torch.arange(4.0)).tolist())
