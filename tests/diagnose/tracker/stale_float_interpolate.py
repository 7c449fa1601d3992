"""pytorch/pytorch#197889: a Python float that reaches the scale factor of interpolate keeps the value of an earlier
call, and the output has the shape of that call. Needs the cache of AOTAutograd."""

import torch
from torch.nn import functional


def program(x, s):
    return functional.interpolate(x * s, scale_factor=s + 0.5)


def inputs(seed, s):
    torch.manual_seed(seed)
    return (torch.randn(1, 1, 4, 4), s)


def make():
    return program, inputs(0, 0.5), {}


def extra_calls():
    return [(inputs(1, 1.5), {}), (inputs(2, 2.5), {}), (inputs(3, 3.5), {})]


EXPECT = {
    "kind": "wrong_shape wrong_value",
    "stage": "aot runtime",
    "ops": "aten.upsample_nearest2d torch.nn.functional.interpolate",
}
