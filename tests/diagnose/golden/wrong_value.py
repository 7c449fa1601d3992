"""Of two modules one has a ReLU, whose kernels are wrong."""

import torch
import torch._inductor.config

torch._inductor.config.cpp.inject_relu_bug_TESTING_ONLY = "accuracy"


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16), torch.nn.LayerNorm(16)

    def forward(self, x):
        return self.norm(x + self.down(torch.relu(self.up(x))))


torch.manual_seed(0)
model = torch.compile(torch.nn.Sequential(Block(), torch.nn.Tanh()))
print(model(torch.randn(4, 16)).sum().item())
