"""A program that catches what `view` raises, and goes on: compiled, the error ends the compilation instead."""

import torch


def program(x):
    try:
        return x.view(5, 5)
    except RuntimeError:
        return x * 2


def make():
    return program, (torch.arange(12.0).reshape(3, 4),), {}


EXPECT = {"kind": "crash_compile", "stage": "dynamo", "ops": "torch.Tensor.view aten.view"}
