# ruff: noqa: F403, F405 (a star import is how the source is used)
"""All three scenarios, one after the other, on a model that somebody else wrote."""

import glob
import os
import sys

import torch
from ptdbg_ascend import *

from models import WRONG, WrongOp, build, loss_of

name = sys.argv[1]


def train(path, op=None, **switch):
    """One step, dumped; with an operator that is wrong or not."""
    seed_all()
    set_dump_path(f"./{path}.pkl")
    model = build(name)
    register_hook(model, acc_cmp_dump, dump_step=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with WrongOp(op):
        set_dump_switch("ON", **switch)
        loss_of(model, name).backward()
        set_dump_switch("OFF")
    optimizer.step()
    return max(glob.glob(f"./{path}_2*"))


# first: the accuracy of a training
folders = {"npu": train("npu", WRONG[name]), "again": train("again"), "gpu": train("gpu")}
for candidate in ("npu", "again"):
    os.mkdir(candidate)
    paths = {"npu_pkl_path": f"./{candidate}.pkl", "npu_dump_data_dir": folders[candidate]}
    compare({**paths, "bench_pkl_path": "./gpu.pkl", "bench_dump_data_dir": folders["gpu"]}, f"./{candidate}")

# second: the stack of one call
with open("npu.pkl") as text:
    names = [line.split('"')[1].partition("_forward")[0] for line in text]
call = next(one for one in names if one.endswith(("_tanh", "_conv2d")))
train("stack", mode=2, scope=[call])
parse("./stack.pkl", call)

# third: where it overflows
seed_all()
model = build(name).half()
register_hook(model, overflow_check, overflow_nums=2)
for step in range(4):
    if step == 1:
        layer = model.convs[2] if name == "convnet" else model.transformer.h[1].mlp.c_fc
        layer.weight.data.fill_(6e4)
    loss_of(model, name, torch.float16)
    print(f"step {step} done")
print("never stopped")
