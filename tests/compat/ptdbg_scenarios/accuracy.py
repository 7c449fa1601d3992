# ruff: noqa: F403, F405 (a star import is how the source is used)
"""First scenario: two dumps of a training step, sampled, and their comparison; then a part of it in full."""

import glob
import os

import torch
from network import Network, data
from ptdbg_ascend import *


def train(name, model, **switch):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        batch = data()
        if step == 0:
            set_dump_switch("ON", **switch)
        loss = model(batch).square().mean()
        loss.backward()
        if step == 0:
            set_dump_switch("OFF")
        optimizer.step()
        optimizer.zero_grad()
    return max(glob.glob(f"./{name}_2*"))


folders = {}
for name, wrong in (("npu_dump", True), ("gpu_dump", False)):
    seed_all()
    set_dump_path(f"./{name}.pkl")
    model = Network(wrong)
    register_hook(model, acc_cmp_dump, dump_step=2)
    folders[name] = train(name, model)

param = {
    "npu_pkl_path": "./npu_dump.pkl",
    "bench_pkl_path": "./gpu_dump.pkl",
    "npu_dump_data_dir": folders["npu_dump"],
    "bench_dump_data_dir": folders["gpu_dump"],
}
os.mkdir("./output")
compare(param, "./output", True)

# in full, and only where the error begins
for name, switch in (
    ("npu_dump_list", {"mode": 2, "scope": ["2_Functional_linear", "4_Tensor_mul__forward"]}),
    ("npu_dump_scope", {"mode": 3, "scope": ["2_Functional_linear", "4_Tensor_mul_"]}),
    ("npu_dump_stack", {"mode": 4, "scope": ["1_Functional_layer_norm", "3_Functional_gelu_forward"]}),
):
    seed_all()
    set_dump_path(f"./{name}.pkl")
    model = Network()
    register_hook(model, acc_cmp_dump, dump_step=1)
    train(name, model, **switch)
