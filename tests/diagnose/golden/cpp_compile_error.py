"""Inductor writes C++ that is none for a ReLU."""

import torch
import torch._inductor.config

torch._inductor.config.cpp.inject_relu_bug_TESTING_ONLY = "compile_error"


@torch.compile
def f(x):
    return torch.relu(x).sum()


torch.manual_seed(0)
print(f(torch.randn(8, 8)))
