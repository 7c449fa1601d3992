"""pytorch/pytorch#197859: an instance attribute that hides a submodule is not seen by a compiled module."""

import torch


class Wrapper(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.sub = torch.nn.Linear(4, 4, bias=False)

    def forward(self, x):
        return torch.tanh(self.sub(x))


def make():
    return Wrapper(), (torch.linspace(-1, 1, 4),), {}


def extra_calls():
    return [((torch.linspace(-1, 1, 4),), {})]


def between(fn, i):
    torch.manual_seed(i)
    object.__setattr__(fn, "sub", torch.nn.Linear(4, 4, bias=False))


EXPECT = {"kind": "wrong_value", "stage": "dynamo", "ops": "torch.nn.functional.linear aten.linear torch._C._nn.linear"}
