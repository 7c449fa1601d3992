"""What diagnose finds nothing wrong with."""

import torch


def make():
    torch.manual_seed(0)
    return (lambda x: torch.relu(x) + 1), (torch.randn(8),)
