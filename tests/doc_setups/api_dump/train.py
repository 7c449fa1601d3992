import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in torch.randn(6, 4, 8):
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
