"""Two ranks that hold the same weights, but for one matrix of which each has its part."""

import os

import torch

import graphprobe

rank = int(os.environ["RANK"])
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
part = torch.nn.Linear(8, 4 + rank)
with graphprobe.dump("dump", model={"net": net, "part": part}, data="stats"):
    part(net(torch.ones(4, 8))).sum().backward()
