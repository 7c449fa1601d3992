"""pytorch/pytorch#195402: an index out of range, in a kernel of several threads, ends the process, where
eager raises IndexError."""

import torch


def program(x, index):
    return (x - 0.5)[index]


def make():
    return program, (torch.randn(1, 8, 66, 66), torch.tensor([[1]])), {}


EXPECT = {"kind": "crash_runtime segfault", "stage": "codegen runtime", "ops": "aten.index"}
