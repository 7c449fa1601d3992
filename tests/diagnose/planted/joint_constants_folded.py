"""A joint-graph pass folds two multiplications by constants into one by their sum."""

import torch

from diagnose.planting import graph_of, inductor

mul = torch.ops.aten.mul.Tensor


def fold(given):
    for node in graph_of(given).nodes:
        if node.target is mul and isinstance(node.args[1], float):
            inner = node.args[0]
            if inner.target is mul and isinstance(inner.args[1], float):
                node.args = (inner.args[0], inner.args[1] + node.args[1])


def make():
    return (lambda x: (torch.cos(x) * 0.5) * 3.0), (torch.randn(33),), {}


PLANT = inductor(joint_custom_post_pass=fold)
EXPECT = {"kind": "wrong_value", "stage": "joint", "ops": "aten.mul"}
