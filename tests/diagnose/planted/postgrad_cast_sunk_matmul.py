"""A post-grad pass moves the cast to float32 from the operands of a matmul to its result, in a bf16 transformer with an
early exit in float32."""

import torch
from torch import nn

from diagnose.hosts import transformer
from diagnose.planting import graph_of, inductor

aten, cast = torch.ops.aten, torch.ops.prims.convert_element_type.default


def sink(given):
    graph = graph_of(given)
    for node in [n for n in graph.nodes if n.target is aten.mm.default]:
        if all(a.target is cast and a.args[1] is torch.float32 for a in node.args):
            with graph.inserting_before(node):
                low = graph.call_function(aten.mm.default, tuple(a.args[0] for a in node.args))
                low.meta = {**node.meta, "val": node.meta["val"].to(torch.bfloat16)}
                up = graph.call_function(cast, (low, torch.float32))
                up.meta = dict(node.meta)
            node.replace_all_uses_with(up)
            graph.erase_node(node)


class WithExit(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, ids):
        early = self.body.tok(ids).view(-1, 32).float() @ self.body.head.weight.t().float()
        return early, self.body(ids)


def make():
    model, args, kwargs = transformer(torch.bfloat16)
    return WithExit(model).eval(), args, kwargs


PLANT = inductor(post_grad_custom_post_pass=sink)
EXPECT = {"kind": "wrong_value", "stage": "post_grad", "ops": "aten.mm prims.convert_element_type aten._to_copy"}
