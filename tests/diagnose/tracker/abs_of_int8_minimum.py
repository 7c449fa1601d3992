"""`abs` of int8 is an int in C++: -128 becomes 128 for what uses it in one kernel. Found by differential testing."""

import torch


def program(x):
    return x.abs() > 0


def make():
    return program, (torch.tensor(-128, dtype=torch.int8),), {}


EXPECT = {"kind": "wrong_value", "stage": "codegen", "ops": "aten.abs", "lines": 40}
