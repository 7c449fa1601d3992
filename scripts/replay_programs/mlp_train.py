"""One training step of a small MLP: forward, backward, optimizer."""

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
compiled = torch.compile(model)
x, target = torch.randn(4, 8), torch.randn(4, 4)
loss = torch.nn.functional.mse_loss(compiled(x), target)
loss.backward()
optimizer.step()
print(f"loss {loss.item():.5f}")
