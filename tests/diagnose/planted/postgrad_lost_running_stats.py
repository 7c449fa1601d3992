"""A post-grad pass drops the writes into inputs: the running statistics of the batch norms of a conv net stay as they
were, and outputs and gradients are right."""

import torch

from diagnose.hosts import convnet
from diagnose.planting import graph_of, inductor

GRAD = True


def drop(given):
    graph = graph_of(given)
    for node in [n for n in graph.nodes if n.target is torch.ops.aten.copy_.default]:
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)


def make():
    return convnet(train=True)


PLANT = inductor(post_grad_custom_post_pass=drop)
EXPECT = {"kind": "lost_mutation wrong_value", "stage": "post_grad", "ops": "aten.copy_"}
