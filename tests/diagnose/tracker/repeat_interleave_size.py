"""pytorch/pytorch#197554: an output size that is not the sum of the repeats passes."""

import torch


def program(x, repeats):
    return torch.repeat_interleave(x + 1, repeats, output_size=9)


def make():
    return program, (torch.randn(3), torch.tensor([1, 2, 3])), {}


EXPECT = {
    "kind": "missing_exception",
    "stage": "decomposition lowering codegen",
    "ops": "aten.repeat_interleave torch.repeat_interleave",
}
