"""`nn.Module.compile`: the module compiles itself, is trained for a step, and asked in between."""

import sys

import fault
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.dropout(torch.relu(self.up(x)), 0.1, self.training))


def main() -> None:
    torch.manual_seed(0)
    model = Net()
    model.compile()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        loss = nn.functional.cross_entropy(model(torch.randn(4, 8)), torch.tensor([0, 1, 2, 0]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            best = model(torch.randn(4, 8)).argmax(1)
        model.train()
        print("step", step, bool(loss.isfinite()), len(best))


if __name__ == "__main__":
    main(*fault.arguments(sys.argv[1:]))
