"""A pass that never ends where it meets an `exp`."""

import time

import torch
import torch._inductor.config


def my_pass(graph):
    while any(node.target is torch.ops.aten.exp.default for node in graph.nodes):
        time.sleep(0.1)


torch._inductor.config.post_grad_custom_post_pass = my_pass


@torch.compile
def f(x):
    return torch.relu(x).exp()


torch.manual_seed(0)
print(f(torch.randn(8, 8)).sum().item())
