"""A dump of a compiled graph with values, and one of calls."""

import os

import torch

import graphprobe

os.mkdir("dump")
config = graphprobe.CompilerConfig()
config.dump_config.enable_dump = True
config.dump_config.dump_path = "dump"
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
backend = graphprobe.get_backend(compiler_config=config, backend="aot_eager")
torch.compile(model, backend=backend)(torch.ones(2, 4))

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with graphprobe.dump("calls", model=model, data="tensor", steps="0|3"):
    for _ in range(4):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
