"""A joint-graph pass turns a division by a constant into a multiplication by its reciprocal, rounded to three digits:
the scale of the attention of a transformer that is trained."""

import torch

from diagnose.hosts import transformer
from diagnose.planting import graph_of, inductor

GRAD = True


def reciprocal(given):
    for node in graph_of(given).nodes:
        if node.target is torch.ops.aten.div.Tensor and isinstance(node.args[1], float):
            node.target = torch.ops.aten.mul.Tensor
            node.args = (node.args[0], round(1 / node.args[1], 3))


def make():
    return transformer(depth=3, at=1)


PLANT = inductor(joint_custom_pre_pass=reciprocal)
EXPECT = {"kind": "wrong_value wrong_gradient", "stage": "joint", "ops": "aten.div aten.mul"}
