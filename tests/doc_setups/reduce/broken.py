"""An MLP that does not compile: ReLU becomes C++ that no compiler takes."""

import torch
import torch._inductor.config

torch._inductor.config.cpp.inject_relu_bug_TESTING_ONLY = "compile_error"


@torch.compile
def forward(x: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x = torch.tanh(x * 2)
    return torch.relu(x).sum()


forward(torch.ones(64, 32))
