import torch
from model import Net

import graphprobe


def dumped(path, dtype, noise):
    torch.manual_seed(0)
    net = Net()
    net.blocks[2].up.weight.data.mul_(1 + noise * torch.randn(32, 16))
    x = torch.randn(8, 16).bfloat16()
    with graphprobe.dump(path, model=net.to(dtype), data="tensor"):
        net(x.to(dtype)).sum().backward()


dumped("dump_bf16", torch.bfloat16, 1e-3)
dumped("dump_fp32", torch.float32, 0.0)
