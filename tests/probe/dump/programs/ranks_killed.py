"""Two ranks that dump below the same path; the second one is killed in the middle of an op of its fourth step."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import graphprobe
from graphprobe.probe.dump.sessions import close_all, open_sessions

STEPS, LAST = 6, 3
folder, data = Path(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo")
rank = dist.get_rank()
step = 0


@torch.library.custom_op("ranks::through", mutates_args=())
def through(x: torch.Tensor) -> torch.Tensor:
    if rank == 1 and step == LAST:
        deadline = time.monotonic() + 120
        while not (folder / "rank0_is_done").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    return x.clone()


@through.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


config = graphprobe.CompilerConfig()
config.dump_config.enable_dump = True
config.dump_config.dump_path = str(folder)
config.dump_config.dump_data = data
compiled = torch.compile(
    lambda x: through(x.sin()) + 1, backend=graphprobe.get_backend(compiler_config=config, backend="aot_eager")
)
for step in range(STEPS):  # `through` reads it
    compiled(torch.full((2,), float(10 * rank + step)))
    if step == LAST - 1:
        open_sessions()[0].flush()
close_all()
(folder / "rank0_is_done").touch()
time.sleep(600)  # torchrun ends this rank when it finds the other one dead
