"""Inductor's own injected fault: relu adds one. Only the backward of a custom function has one, in a transformer."""

import torch

from diagnose.hosts import transformer
from diagnose.planting import inductor

GRAD = True


class OneSided(torch.autograd.Function):
    """The identity, through which only positive gradients pass."""

    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        return torch.relu(grad)


def one_sided(h):
    return OneSided.apply(h)


def make():
    return transformer(inner=one_sided, depth=6, at=3)


def plant():
    return inductor(cpp__inject_relu_bug_TESTING_ONLY="accuracy")


EXPECT = {
    "kind": "wrong_gradient",
    "stage": "codegen",
    "culprit_ops": ["aten.relu.default"],
    "direction": "backward",
}
