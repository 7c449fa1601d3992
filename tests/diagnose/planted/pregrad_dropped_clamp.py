"""A pre-grad pass takes a clamp for one without effect and removes it."""

import torch

from diagnose.planting import graph_of, inductor


def remove(given):
    graph = graph_of(given)
    for node in [n for n in graph.nodes if n.target in ("clamp", torch.clamp)]:
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)


def make():
    return (lambda x: x.clamp(-1.5, 1.5).exp()), (torch.randn(40) * 2,), {}


PLANT = inductor(pre_grad_custom_pass=remove)
EXPECT = {"kind": "wrong_value", "stage": "pre_grad", "ops": "torch.Tensor.clamp torch.clamp clamp aten.clamp"}
