"""pytorch/pytorch#198270: after an index_put_ into x, x.add_(x.flip(0)) is fused with the copy back into x and reads
values that it has already overwritten."""

import torch


def program(x):
    x.index_put_((torch.arange(x.size(0)),), x * 2.0)
    x.add_(x.flip(0))
    return x


def make():
    return program, (torch.rand(4, 8),), {}


EXPECT = {
    "kind": "wrong_value lost_mutation aliasing",
    "stage": "codegen lowering",
    "ops": "aten.copy_ aten.add aten.rev aten.flip",
}
