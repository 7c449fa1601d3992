"""No issue known; found by comparing ops: argmin over the rows of a uint8 matrix is 0 everywhere."""

import torch


def program(x):
    return (x // 2).argmin(1)


def make():
    torch.manual_seed(0)
    return program, (torch.randint(0, 255, (10, 10), dtype=torch.uint8),), {}


EXPECT = {
    "kind": "wrong_value",
    "stage": ["codegen", "lowering"],
    "culprit_ops": ["aten.argmin.default"],
    "direction": "forward",
}
