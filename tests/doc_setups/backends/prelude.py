import torch
from model import Model

model, x = Model(), torch.linspace(-1, 1, 8)


def fn(x):
    return x.sin() * x.sum().item()
