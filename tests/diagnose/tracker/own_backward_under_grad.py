"""`torch.func.grad` of a `Function` with a backward of its own: Dynamo's graph has the forward, and differentiates that
(pytorch#193279)."""

import torch


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return torch.sign(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < 1)


def loss(x):
    return (StraightThrough.apply(x) * 3).sum()


def program(x, step):
    return x - step * torch.func.grad(loss)(x)


def make():
    return program, (torch.randn(12), torch.tensor(0.1)), {}


EXPECT = {"kind": "wrong_value", "stage": "dynamo", "ops": "autograd_function_apply", "lines": 60}
