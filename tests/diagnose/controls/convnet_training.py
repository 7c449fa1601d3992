"""A convnet in training, which Inductor runs channels last: batch norm then adds 1024 values one after the other."""

import torch
from torch import nn

GRAD = True
CHANNELS = 16


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(n, CHANNELS, 3, padding=1) for n in (3, CHANNELS, CHANNELS, CHANNELS))
        self.norms = nn.ModuleList(nn.BatchNorm2d(CHANNELS) for _ in self.convs)
        self.head = nn.Linear(CHANNELS, 10)

    def forward(self, x):
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = norm(conv(x))
            x = x.abs() if i == 2 else nn.functional.silu(x)
        return self.head(x.mean((2, 3))).square().mean()


def make():
    return Net().train(), (torch.randn(4, 3, 16, 16),), {}
