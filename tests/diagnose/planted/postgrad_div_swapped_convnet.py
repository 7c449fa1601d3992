"""A post-grad pass swaps the operands of a division of two tensors, in a conv net that is trained."""

import torch

from diagnose.hosts import convnet
from diagnose.planting import graph_of, inductor

GRAD = True


def swap(given):
    for node in graph_of(given).nodes:
        if node.target is torch.ops.aten.div.Tensor and all(isinstance(a, torch.fx.Node) for a in node.args):
            shapes = {tuple(a.meta["val"].shape) for a in node.args}
            if len(shapes) == 1:
                node.args = (node.args[1], node.args[0])
                return


def soft_ratio(h):
    return h + torch.exp(-h * h) / (1.5 + torch.sin(h))


def make():
    return convnet(inner=soft_ratio, at=1, train=True)


PLANT = inductor(post_grad_custom_pre_pass=swap)
EXPECT = {"kind": "wrong_value wrong_gradient", "stage": "post_grad", "ops": "aten.div"}
