"""Graphs nested in graphs: branches of cond, one in another, a regional compile, flex attention, checkpoint, a loop."""

import torch
from torch._higher_order_ops.invoke_subgraph import mark_compile_region
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


@mark_compile_region
def region_of_sin(v):
    return (v + 0).sin()


@mark_compile_region
def region_of_cos(v):
    return (v + 0).cos()


def cond(x, w):
    h = x @ w
    h = torch.cond(h.sum() > 0, lambda v: (v.sin() + 0).relu(), lambda v: v.cos(), (h,))
    return (h * 1).sum()


def cond_in_cond(x):
    def outer(v):
        return torch.cond(v.mean() > 0, lambda v: (v + 0).sin(), lambda v: v.cos() * 1, (v,))

    return torch.cond(x.sum() > 0, outer, lambda v: v.tan(), (x * 1,)) + 1


def regions(x):
    return region_of_cos(region_of_cos(region_of_sin(region_of_sin(x)))) + 1


def flex(q, k, v):
    return flex_attention(q * 1, k, v, score_mod=lambda s, b, h, i, j: s + 0 + (i - j))


def checkpointed(x):
    return checkpoint(lambda v: (v + 0).sin().cos(), x * 1, use_reentrant=False) + 1


def loop(x):
    return while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, (v + 0).sin()), (torch.tensor(0), x * 1))[1]


def call(function, *args):
    result = torch.compile(function)(*args)
    if result.requires_grad:
        result.sum().backward()
    print(function.__name__, float(result.sum()))


call(cond, torch.ones(3, 4), torch.ones(4, 4, requires_grad=True))
call(cond_in_cond, torch.ones(3, 4))
call(regions, torch.ones(3, 4, requires_grad=True))
call(flex, *(torch.randn(1, 2, 128, 16) for _ in range(3)))
call(checkpointed, torch.ones(3, 4, requires_grad=True))
call(loop, torch.ones(3, 4))
