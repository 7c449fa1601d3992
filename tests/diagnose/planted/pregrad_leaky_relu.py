"""A pre-grad pass replaces relu by leaky_relu, in a conv net."""

import torch
from torch.nn import functional

from diagnose.hosts import convnet
from diagnose.planting import graph_of, inductor


def leaky(given):
    for node in graph_of(given).nodes:
        if node.target in (functional.relu, torch.relu):
            node.target, node.args, node.kwargs = functional.leaky_relu, (node.args[0], 0.03), {}


def make():
    return convnet()


PLANT = inductor(pre_grad_custom_pass=leaky)
EXPECT = {"kind": "wrong_value", "stage": "pre_grad", "ops": "torch.nn.functional.relu aten.relu aten.leaky_relu"}
