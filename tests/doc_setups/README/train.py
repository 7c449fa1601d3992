import torch

model = torch.compile(torch.nn.Linear(4, 4), backend="aot_eager")
model(torch.ones(2, 4)).sum().backward()
