import sys

import torch

import graphprobe

x, scale = torch.linspace(-1, 1, 64), torch.full((64,), float(sys.argv[2]))
with graphprobe.dump(sys.argv[1], data="tensor"):
    torch.relu(torch.mul(x, scale))
