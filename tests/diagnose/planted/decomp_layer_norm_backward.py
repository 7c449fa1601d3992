"""The decomposition of the backward of layer norm forgets the projection onto the normalised input."""

import torch

from diagnose.hosts import transformer
from diagnose.planting import decomposition

GRAD = True


def wrong_backward(grad, x, shape, mean, rstd, weight, bias, mask):
    normed = (x - mean) * rstd
    g = grad * weight
    dx = (g - g.mean(-1, keepdim=True)) * rstd
    rows = list(range(x.dim() - len(shape)))
    return dx, (grad * normed).sum(rows), grad.sum(rows)


def make():
    return transformer(depth=2, at=1)


PLANT = decomposition(torch.ops.aten.native_layer_norm_backward.default, wrong_backward)
EXPECT = {"kind": "wrong_gradient", "stage": "decomposition", "ops": "aten.native_layer_norm_backward"}
