"""The partitioner saves another function of the input of a tanh than its value, in an MLP that is trained."""

import torch
import torch._inductor.compile_fx as compile_fx

from diagnose.hosts import mlp
from diagnose.planting import attribute

GRAD = True
right = compile_fx.min_cut_rematerialization_partition


def wrong_partition(gm, joint_inputs, *args, **kwargs):
    forward, backward = right(gm, joint_inputs, *args, **kwargs)
    tangents = {n for n in backward.graph.nodes if n.name.startswith("tangents")}
    for node in backward.graph.nodes:
        if node.target is torch.ops.aten.tanh.default and not tangents & set(node.args):
            node.target = torch.ops.aten.sin.default
        if node.op == "placeholder" and node.name.startswith("tanh"):
            with backward.graph.inserting_after(node):
                stale = backward.graph.call_function(torch.ops.aten.sin.default, (node,))
            stale.meta = dict(node.meta)
            node.replace_all_uses_with(stale)
            stale.args = (node,)
    backward.recompile()
    return forward, backward


def make():
    return mlp()


PLANT = attribute(compile_fx, "min_cut_rematerialization_partition", wrong_partition)
EXPECT = {"kind": "wrong_gradient", "stage": "joint aot", "ops": "aten.tanh aten.tanh_backward aten.mul aten.sub"}
