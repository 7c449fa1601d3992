import torch

from graphprobe.compat.ptdbg import acc_cmp_dump, register_hook, seed_all, set_dump_path, set_dump_switch

seed_all()
set_dump_path("./npu_dump.pkl")
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
register_hook(model, acc_cmp_dump, dump_step=1)
set_dump_switch("ON")
model(torch.ones(2, 4)).sum().backward()
set_dump_switch("OFF")
