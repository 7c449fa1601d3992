"""An argument with gaps between its elements is dense once something has been added to it in place, and what counts in
strides takes other elements (pytorch/pytorch#133512). In float64, too, it is right only if the gaps are there."""

import torch


def program(x):
    x.add_(1)
    return torch.as_strided_copy(x, (3,), (2,))


def make():
    return program, (torch.arange(10.0)[::2],), {}


EXPECT = {
    "kind": "wrong_value",
    "stage": "aot",
    "ops": "aten.as_strided_copy torch.as_strided_copy aten.add torch.Tensor.add_",
}
