"""An in-place division of a list of complex tensors is not lowered (pytorch#197376)."""

import torch


def program(ts):
    torch._foreach_div_(ts, 2j)
    return ts[0] + 1


def make():
    return program, ([torch.tensor([1 + 2j, 3 - 1j]), torch.tensor([2j])],), {}


EXPECT = {"kind": "crash_compile", "stage": "lowering", "ops": "aten._foreach_div_ aten._foreach_div", "lines": 40}
