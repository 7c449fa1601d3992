"""pytorch/pytorch#185509: gradients through a sliced interpolation, a convolution and a pooling are wrong."""

import torch
from torch.nn import functional


def program(x, weight, bias, mask):
    y = functional.interpolate(x, scale_factor=(1.5, 1.25), mode="bilinear", align_corners=False)[:, :, 1:7, 1:8]
    conv = functional.conv2d(y, weight, bias, padding=1)
    return torch.where(mask, conv, functional.max_pool2d(conv, 3, 1, 1))


GRAD = True


def make():
    x, weight, bias = torch.randn(2, 3, 6, 8), torch.randn(4, 3, 3, 3), torch.randn(4)
    mask = torch.rand(2, 4, 6, 7) > 0.5
    return program, (*(t.requires_grad_() for t in (x, weight, bias)), mask), {}


EXPECT = {
    "kind": "wrong_gradient wrong_value",
    "stage": "lowering codegen decomposition joint post_grad",
    "ops": "aten.scatter_add aten.convolution_backward",
}
