"""pytorch/pytorch#198131: what is copied out of a buffer that is changed later is the changed one; in an MLP that keeps
the running mean of its activations and the one before it."""

import torch

from diagnose.hosts import mlp


def keep(h, before, running):
    before[0:, :] = running[0:, :]
    running.mul_(0.9)
    return h + 0.1 * running.mean(0)


def make():
    model, args, kwargs = mlp(inner=keep, at=2)
    return model, (*args, torch.zeros(5, 32), torch.randn(5, 32)), kwargs


EXPECT = {
    "kind": "wrong_value lost_mutation",
    "stage": "post_grad",
    "ops": "aten.copy_ aten.slice_scatter aten.slice operator.setitem",
    "lines": 40,
}
