"""A pass at the end of the post-grad passes swaps the operands of a subtraction."""

import torch

from diagnose.planting import graph_of, inductor


def swap(given):
    for node in graph_of(given).nodes:
        if node.target is torch.ops.aten.sub.Tensor:
            node.args = (node.args[1], node.args[0])


def make():
    return (lambda x, y: torch.sigmoid(x) * 2 - y.sin()), (torch.randn(4, 9), torch.randn(4, 9)), {}


PLANT = inductor(post_grad_custom_post_pass=swap)
EXPECT = {"kind": "wrong_value", "stage": "post_grad", "ops": "aten.sub"}
