"""The same, with a fault in the compiler that torch plants for its own tests."""

import torch
import torch._inductor.config

torch._inductor.config.cpp.inject_relu_bug_TESTING_ONLY = "accuracy"


def make():
    torch.manual_seed(0)
    return (lambda x: torch.relu(x) + 1), (torch.randn(8),)
