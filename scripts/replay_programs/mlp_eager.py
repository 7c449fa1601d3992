"""Two training steps of a small MLP, not compiled; an argument scales the second weight in the first step."""

import sys

import torch

torch.use_deterministic_algorithms(True)  # what torch.empty gives is NaN then, and not what was in memory
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.no_grad():
    model[2].weight.mul_(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
for _ in range(2):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(torch.randn(4, 8)), torch.randn(4, 4))
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.5f}")
