"""pytorch/pytorch#195579: addmm refuses an input of another shape than its result; compiled it broadcasts."""

import torch


def make():
    return torch.addmm, (torch.randn(5, 1), torch.randn(1, 1), torch.randn(1, 1)), {}


EXPECT = {"kind": "missing_exception", "stage": "decomposition", "ops": "aten.addmm torch.addmm"}
