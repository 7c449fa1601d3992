"""What the scenarios train: a few layers, one operation in place, and a batch of noise."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


class Network(nn.Module):
    def __init__(self, wrong=False):
        super().__init__()
        self.norm = nn.LayerNorm(40)
        self.fc1 = nn.Linear(40, 40)
        self.fc2 = nn.Linear(40, 40)
        self.wrong = wrong

    def forward(self, x):
        x = F.gelu(self.fc1(self.norm(x)))
        x.mul_(2.0)
        if self.wrong:
            x = x.clone()
            x[3, 5] += 0.5
        return self.fc2(x)


def data(dtype=torch.float32):
    generator = torch.Generator().manual_seed(7)
    return torch.randn(20, 40, generator=generator).to(dtype)
