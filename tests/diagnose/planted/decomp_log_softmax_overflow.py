"""The decomposition of log_softmax does not subtract the maximum: large logits overflow."""

import torch
from torch.nn import functional

from diagnose.hosts import mlp
from diagnose.planting import decomposition


def unshifted(x, dim, half_to_float):
    return x - torch.log(torch.exp(x).sum(dim, keepdim=True))


def large(h):
    return functional.log_softmax(h * 100.0, -1)


def make():
    return mlp(inner=large, at=2)


PLANT = decomposition(torch.ops.aten._log_softmax.default, unshifted)
EXPECT = {"kind": "nonfinite wrong_value", "stage": "decomposition", "ops": "aten._log_softmax aten.exp"}
