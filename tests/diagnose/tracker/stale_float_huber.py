"""pytorch/pytorch#197889: a Python float that reaches the delta of a Huber loss keeps the value of an earlier call.
Needs the cache of AOTAutograd."""

import torch
from torch.nn import functional


def program(x, y, delta):
    return functional.huber_loss(x * delta, y, delta=delta + 1e-3)


def inputs(seed, delta):
    torch.manual_seed(seed)
    return (torch.randn(4, 4) * 3, torch.randn(4, 4), delta)


def make():
    return program, inputs(0, 0.5), {}


def extra_calls():
    return [(inputs(1, 1.5), {}), (inputs(2, 2.5), {}), (inputs(3, 3.5), {})]


EXPECT = {
    "kind": "wrong_value",
    "stage": "aot runtime",
    "ops": "aten.huber_loss torch.nn.functional.huber_loss aten.lt aten.mul",
}
