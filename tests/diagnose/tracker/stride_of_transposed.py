"""Strides that are read after a transposition in place: Dynamo gives those from before."""


def program(x):
    y = x.clone()
    y.t_()
    return y, y.stride()


def make():
    import torch

    return program, (torch.randn(3, 4),), {}


EXPECT = {"kind": "wrong_value", "stage": "dynamo", "ops": "torch.Tensor.stride torch.Tensor.t_"}
