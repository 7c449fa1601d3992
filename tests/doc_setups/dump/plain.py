import torch

model = torch.compile(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()))
for _ in range(2):
    model(torch.randn(4, 8)).sum().backward()
