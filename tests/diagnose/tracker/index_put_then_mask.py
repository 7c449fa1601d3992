"""A masked fill behind an `index_put` into a slice's result is fused with what comes before it: the scatter is last."""

import torch


def program(x):
    y = x.clone()
    y[1:4] = torch.tensor([1.0, 2.0, 3.0])
    y[torch.tensor([0, 0, 5])] = 9.0
    y[y > 2] = -1
    return y


def make():
    return program, (torch.zeros(6),), {}


EXPECT = {"kind": "wrong_value", "stage": "codegen", "ops": "aten.index_put aten.where"}
