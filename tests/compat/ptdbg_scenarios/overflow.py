# ruff: noqa: F403, F405 (a star import is how the source is used)
"""Third scenario: a training that overflows, stopped at the second overflow."""

import torch
from network import Network, data
from ptdbg_ascend import *

seed_all()
model = Network().half()
register_hook(model, overflow_check, overflow_nums=2)
for step in range(4):
    scale = 1.0 if step == 0 else 3e4
    out = model(data(torch.float16)) * scale * scale
    print(f"step {step} done")
print("never stopped")
