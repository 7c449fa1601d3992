"""Recompiles for several reasons, with gradients and random numbers, and prints what came out."""

import torch


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.drop = torch.nn.Dropout(0.5)
        self.scale = 1

    def forward(self, x: torch.Tensor, mode: str) -> torch.Tensor:
        y = self.drop(self.linear(x)) * self.scale
        torch._dynamo.graph_break()
        return y.sum() if mode == "sum" else y.mean()


torch._logging.set_logs(recompiles=True)
torch.manual_seed(0)
torch._dynamo.config.recompile_limit = 4
net = Net()
fast = torch.compile(net, backend="eager")
for step in range(9):
    net.train(step % 2 == 0)
    net.scale = step
    loss = fast(torch.randn(2 + step, 4), "sum" if step % 3 else "mean")
    loss.backward()
    print(step, loss.item().hex(), net.linear.weight.grad.sum().item().hex(), torch.rand(()).item().hex())
stats = torch._dynamo.utils.counters
print(stats["stats"]["unique_graphs"], stats["frames"]["ok"], stats["frames"]["total"])
print(sorted(torch._dynamo.utils.guard_failures.values(), key=str) == [], len(torch._dynamo.utils.guard_failures))
try:
    torch.compile(lambda x, key: x * len(key), backend="eager", fullgraph=True)(torch.ones(3), "a")
    with torch._dynamo.config.patch(error_on_recompile=True):
        fast(torch.ones(30, 4, dtype=torch.float64), "none")
except Exception as error:
    import traceback

    print(type(error).__name__, len(traceback.extract_tb(error.__traceback__)))
