"""AOTAutograd traces a negation in a backward as a copy."""

import torch
import torch._functorch._aot_autograd.graph_capture as capture

from diagnose.planting import attribute

GRAD = True
right = capture._create_graph


def wrong(*args, **kwargs):
    graph = right(*args, **kwargs)
    for node in graph.graph.nodes:
        if node.target is torch.ops.aten.neg.default:
            node.target = torch.ops.aten.clone.default
    graph.recompile()
    return graph


def make():
    return (lambda x: torch.cos(x) * 2), (torch.randn(3, 6).requires_grad_(),), {}


def plant():
    return attribute(capture, "_create_graph", wrong)


EXPECT = {"kind": "wrong_gradient", "stage": "aot", "ops": "aten.neg aten.clone aten.cos"}
