"""The largest of many equal values: which of them topk names is not specified."""

import torch


def program(x):
    scores = torch.tanh(x) * 0.5
    values, places = scores.topk(5, -1)
    return values, places


def make():
    return program, (torch.randint(0, 3, (4, 40)).float(),), {}
