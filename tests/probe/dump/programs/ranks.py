"""Two ranks, one model each: each dumps below the same path."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

import graphprobe

dist.init_process_group("gloo")
config = graphprobe.CompilerConfig()
config.dump_config.enable_dump = True
config.dump_config.dump_path = sys.argv[1]
compiled = torch.compile(
    lambda x: x.sin() + 1, backend=graphprobe.get_backend(compiler_config=config, backend="aot_eager")
)
compiled(torch.full((2,), float(dist.get_rank())))
dist.destroy_process_group()
