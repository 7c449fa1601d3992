"""pytorch/pytorch#197889: a Python float that reaches the eps of a norm keeps the value of an earlier call.
Needs the cache of AOTAutograd."""

import torch
from torch.nn import functional


def program(x, s):
    return functional.rms_norm(x * s, (4,), eps=s + 1e-3)


def inputs(seed, s):
    torch.manual_seed(seed)
    return (torch.randn(4, 4), s)


def make():
    return program, inputs(0, 0.5), {}


def extra_calls():
    return [(inputs(1, 1.5), {}), (inputs(2, 2.5), {}), (inputs(3, 3.5), {})]


EXPECT = {
    "kind": "wrong_value",
    "stage": "aot runtime",
    "ops": "aten.rms_norm aten._fused_rms_norm aten.add torch.nn.functional.rms_norm torch.rms_norm",
}
