"""No issue known; found by comparing ops: the index of a maximum among -inf only is outside of the window."""

import torch


def program(x):
    return torch.nn.functional.max_pool2d(x, 3, 2, 1, return_indices=True)


def make():
    return program, (torch.full((1, 1, 6, 6), float("-inf")),), {}


EXPECT = {
    "kind": "wrong_value",
    "stage": "lowering",
    "ops": "aten.max_pool2d_with_indices prims._low_memory_max_pool_with_offsets",
}
