"""Dropout in training: the compiled program draws other random numbers, by design."""

import torch
from torch import nn

GRAD = True


def make():
    net = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Dropout(0.4), nn.Linear(32, 32), nn.Dropout(0.1), nn.GELU())
    return net.train(), (torch.randn(8, 24),), {}
