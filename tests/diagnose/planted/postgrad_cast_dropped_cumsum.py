"""A post-grad pass drops the cast to float32 in front of a cumsum of bf16 values."""

import torch

from diagnose.planting import graph_of, inductor

aten, cast = torch.ops.aten, torch.ops.prims.convert_element_type.default


def drop(given):
    graph = graph_of(given)
    for node in [n for n in graph.nodes if n.target is aten.cumsum.default and n.args[0].target is cast]:
        with graph.inserting_before(node):
            low = graph.call_function(aten.cumsum.default, (node.args[0].args[0], *node.args[1:]))
            low.meta = {**node.meta, "val": node.meta["val"].to(torch.bfloat16)}
            up = graph.call_function(cast, (low, torch.float32))
            up.meta = dict(node.meta)
        node.replace_all_uses_with(up)
        graph.erase_node(node)


def make():
    return (lambda x: x.float().cumsum(-1) * 0.5), (torch.rand(2, 300).to(torch.bfloat16),), {}


PLANT = inductor(post_grad_custom_post_pass=drop)
EXPECT = {"kind": "wrong_value", "stage": "post_grad", "ops": "aten.cumsum prims.convert_element_type aten._to_copy"}
