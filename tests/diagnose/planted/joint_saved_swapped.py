"""The partitioner hands the backward graph two saved tensors of one shape in the wrong order."""

import torch
import torch._inductor.compile_fx as compile_fx

from diagnose.planting import attribute

GRAD = True
right = compile_fx.min_cut_rematerialization_partition


def wrong_partition(gm, joint_inputs, *args, **kwargs):
    forward, backward = right(gm, joint_inputs, *args, **kwargs)
    saved = [n for n in backward.graph.nodes if n.op == "placeholder" and not n.name.startswith("tangents")]
    by_shape = {}
    for node in saved:
        value = node.meta["val"]
        first = by_shape.setdefault((tuple(value.shape), value.dtype), node)
        if first is not node:
            users = list(first.users), list(node.users)
            for mine, other, nodes in ((first, node, users[0]), (node, first, users[1])):
                for user in nodes:
                    user.args = torch.fx.node.map_arg(user.args, lambda n, a=mine, b=other: b if n is a else n)
            break
    backward.recompile()
    return forward, backward


def make():
    x, y = (torch.randn(3, 8).requires_grad_() for _ in range(2))
    return (lambda a, b: a * b), (x, y), {}


PLANT = attribute(compile_fx, "min_cut_rematerialization_partition", wrong_partition)
EXPECT = {"kind": "wrong_gradient", "stage": "joint aot", "ops": "aten.mul"}
