"""pytorch/pytorch#188084: index_put with accumulation into an expanded view is done in place
and counts the gradient once per row of the batch."""

import torch
from torch.func import grad_and_value, vmap

COMPILE = {"dynamic": True}


def row(x):
    stacked = torch.stack([x[..., k] for k in range(4)], dim=-1)
    chosen = torch.index_select(stacked, -1, torch.tensor([0, 2]))
    return (chosen * torch.tensor([1.0, -1.0])).sum(-1)


def make():
    return vmap(grad_and_value(row)), (torch.randn(4, 4),), {}


EXPECT = {
    "kind": "wrong_value wrong_gradient",
    "stage": "post_grad",
    "ops": "aten.index_put aten.index_put_ aten.index_add",
}
