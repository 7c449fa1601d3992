"""Regional compilation: `regional.py COUNT [other]` trains equal blocks, each compiled by itself."""

import sys

import fault
import torch
from torch import nn


class Block(nn.Module):
    """A residual block; its number is no part of what it computes."""

    def __init__(self, number: int, *, other: bool) -> None:
        super().__init__()
        self.number, self.other = number, other and number % 2 == 1
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(self.norm(x))
        return x + self.down(torch.tanh(h) if self.other else torch.relu(h))


def main(count: str, other: str = "") -> None:
    torch.manual_seed(0)
    first, last = nn.Linear(8, 16), nn.Linear(16, 3)
    blocks = nn.Sequential(*(Block(number, other=other == "other") for number in range(int(count))))
    model = nn.Sequential(first, blocks, last)
    for block in blocks:
        block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(2):
        loss = nn.functional.cross_entropy(model(torch.randn(4, 8)), torch.tensor([0, 1, 2, 0]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("step", step, bool(loss.isfinite()))


if __name__ == "__main__":
    main(*fault.arguments(sys.argv[1:]))
