"""pytorch/pytorch#198102: a mutation through windows that do not touch zeroes what no window covers."""

import torch


def program(x):
    windows = x.unfold(1, 1, 5)
    windows.add_(windows)
    return x * 1.0


def make():
    return program, (torch.arange(1.0, 25).reshape(4, 6),), {}


EXPECT = {
    "kind": "wrong_value lost_mutation",
    "stage": "aot",
    "ops": "aten.unfold torch.Tensor.unfold aten.unfold_backward aten.add_",
}
