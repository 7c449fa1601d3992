"""A post-grad pass moves the write into an input before a read of its old value."""

import torch

from diagnose.planting import graph_of, inductor


def move(given):
    graph = graph_of(given)
    for node in [n for n in graph.nodes if n.target is torch.ops.aten.copy_.default]:
        if isinstance(node.args[1], torch.fx.Node) and node.args[1].op != "placeholder":
            node.args[1].append(node)


def step(state, x):
    new = state * 0.9 + x
    change = torch.tanh(new) - state.flip(0)
    state.copy_(new)
    return change


def make():
    return step, (torch.randn(6, 5), torch.randn(6, 5)), {}


PLANT = inductor(post_grad_custom_post_pass=move)
EXPECT = {
    "kind": "wrong_value lost_mutation aliasing",
    "stage": "post_grad",
    "ops": "aten.copy_ aten.flip aten.rev prims.rev",
}
