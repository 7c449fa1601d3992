"""`atanh` of small numbers is 0 in vector code, which only the division after it shows. pytorch/pytorch#198183."""

import torch


def program(x):
    return torch.atanh(x) / x


def make():
    return program, (torch.linspace(1e-9, 4e-9, 48),), {}


EXPECT = {"kind": "wrong_value", "stage": "codegen", "ops": "aten.atanh", "lines": 40}
