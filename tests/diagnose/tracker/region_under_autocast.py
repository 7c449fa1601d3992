"""A region that is called outside and inside of autocast is traced once for both: the results are of one dtype. Found
by differential testing, near pytorch#192905."""

import torch
import torch.nn as nn


@torch.compiler.nested_compile_region
def mix(h, weight):
    return h @ weight


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        h = torch.relu(self.inp(x))
        full = mix(h, self.weight)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return full, mix(h, self.weight)


def make():
    return Pair(), (torch.randn(3, 4),), {}


EXPECT = {"kind": "wrong_dtype", "stage": "aot", "ops": "higher_order.invoke_subgraph", "lines": 60}
