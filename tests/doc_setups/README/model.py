import torch


def make():
    return torch.nn.Linear(4, 4), (torch.ones(2, 4),)
