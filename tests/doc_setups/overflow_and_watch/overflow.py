import torch


class Layer(torch.nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.linear, self.gain = torch.nn.Linear(8, 8), gain

    def forward(self, x):
        return torch.relu(self.linear(x)) * self.gain * self.gain


torch.manual_seed(0)
model = torch.nn.Sequential(*(Layer(1e30 if number == 3 else 1.0) for number in range(5)))
step = torch.compile(model.bfloat16())
step(torch.randn(8, 8).bfloat16()).sum().backward()
