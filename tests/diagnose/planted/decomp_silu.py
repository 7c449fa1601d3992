"""The decomposition of silu uses a slightly other slope."""

import torch

from diagnose.planting import decomposition


def wrong_silu(x):
    return x * torch.sigmoid(1.02 * x)


def make():
    return (lambda x: torch.nn.functional.silu(x) + 1.0), (torch.randn(5, 7),), {}


PLANT = decomposition(torch.ops.aten.silu.default, wrong_silu)
EXPECT = {"kind": "wrong_value", "stage": "decomposition", "ops": "aten.silu"}
