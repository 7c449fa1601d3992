"""A model that accelerate compiles."""

import sys

import fault
import torch
from accelerate import Accelerator
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, dynamo_backend="inductor", mixed_precision="no")
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    for step in range(2):
        loss = model(torch.randn(8, 8)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        print("step", step, bool(loss.isfinite()))


if __name__ == "__main__":
    main(*fault.arguments(sys.argv[1:]))
