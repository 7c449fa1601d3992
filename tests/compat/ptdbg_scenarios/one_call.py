# ruff: noqa: F403, F405 (a star import is how the source is used)
"""Second scenario: the stack and the statistics of one call of a dump."""

from network import Network, data
from ptdbg_ascend import *

seed_all()
set_dump_path("./npu_dump.pkl")
model = Network()
register_hook(model, acc_cmp_dump)
batch = data()
set_dump_switch("ON", mode=3, scope=["1_Functional_layer_norm", "3_Functional_gelu"])
model(batch).sum().backward()
set_dump_switch("OFF")

parse("./npu_dump.pkl", "2_Functional_linear")
